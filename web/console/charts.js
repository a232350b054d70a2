// Charts over time: uPlot (a script of others, which the page names before ours), told our colours and sizes. One
// chart is made once and fed each second.

import { el } from "../element.js";
import { clock, compact } from "./text.js";

const HEIGHT = 150;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * `series` are [label, colour name, {filled, sparse}]; `format` writes a value.
 * @param {[string, string, { filled?: boolean, sparse?: boolean }?][]} series
 */
export function chart(title, series, { format = compact } = {}) {
  const place = el("div", { class: "plot" });
  const legend = el("p", { class: "legend" }, series.map(([label, hue]) => el("span", {}, el("i", { class: `dot ${hue}` }), label, " ", el("b", {}, "–"))));
  const values = [...legend.querySelectorAll("b")];
  const figure = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, title), legend), place);
  let plot = null;
  let data = [[], ...series.map(() => [])];
  const make = () => {
    plot?.destroy();
    const axis = {
      stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif",
    };
    plot = new globalThis.uPlot({
      width: Math.max(120, place.clientWidth), height: HEIGHT, legend: { show: false },
      cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false }, sync: { key: "board" } },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.1)] } },
      axes: [
        { ...axis, size: 24, values: (_, ticks, at, room, step) => ticks.map((s) => clock(s * 1_000).slice(0, step < 60 ? 8 : 5)), space: 70 },
        { ...axis, size: 44, values: (_, ticks) => ticks.map(format), space: 30 },
      ],
      series: [{}, ...series.map(([label, hue, options = {}]) => ({
        // Nothing is drawn where nothing was measured; what stands alone is a point.
        label, stroke: colour(hue), width: 1.5, spanGaps: false, points: { show: Boolean(options.sparse), size: 4, fill: colour(hue) },
        fill: options.filled ? colour(`${hue}-soft`) : undefined,
      }))],
      hooks: { setCursor: [(self) => write(self.cursor.idx)] },
    }, data, place);
  };
  const write = (at) => {
    const n = at ?? data[0].length - 1;
    values.forEach((value, i) => {
      const shown = data[i + 1][n];
      value.textContent = shown === null || shown === undefined ? "–" : format(shown);
    });
  };
  let width = 0;
  const resized = new ResizeObserver(() => {
    if (place.clientWidth === width || place.clientWidth === 0) return;
    width = place.clientWidth;
    if (plot) plot.setSize({ width, height: HEIGHT });
    else make();
  });
  resized.observe(place);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", make);
  return {
    figure,
    show(next) {
      data = next;
      plot?.setData(data);
      write(plot?.cursor.idx);
    },
    close() {
      resized.disconnect();
      dark.removeEventListener("change", make);
      plot?.destroy();
    },
  };
}
