// Pausing a sale: what will happen, and until when. Whoever pauses at midnight rarely wants to stay up to resume.

import { el } from "../element.js";
import { call } from "./call.js";
import { confirm, field } from "./parts.js";
import { clock, t } from "./text.js";

const PAUSE_MINUTE_MS = 60_000;
const CHOICES_MIN = [5, 10, 15, 30, 60];

/** The lengths of a pause that leave something of the sale. */
export const pausesBefore = (closesAt, now) => CHOICES_MIN.filter((minutes) => now + minutes * PAUSE_MINUTE_MS < closesAt);

/**
 * @param {{ id: number, name: string, closes_at: number }} sale
 * @param {{ live: { now(): number }, after: (moved: any) => void }} with_
 */
export function pauseSale({ id, name, closes_at: closesAt }, { live, after }) {
  const until = el("select", {}, el("option", { value: "" }, t("pause_open")), pausesBefore(closesAt, live.now()).map((minutes) => el("option", { value: String(minutes) },
    `${t("pause_minutes", { n: minutes })} (${clock(live.now() + minutes * PAUSE_MINUTE_MS)})`)));
  return confirm({
    title: t("pause_title", { name }),
    says: [t("pause_says_1"), t("pause_says_2"), t("pause_says_3")],
    fields: [field(t("pause_until"), until, t("pause_until_hint"))],
    yes: t("pause_now"),
    danger: true,
    act: async () => {
      const body = until.value ? { until: Math.round(live.now() + Number(until.value) * PAUSE_MINUTE_MS) } : {};
      after(await call("POST", `/activities/${id}/pause`, { body }));
    },
  });
}
