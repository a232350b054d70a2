// Where a sale stands, by the server's clock.

/** The last minute before an opening is counted everywhere: in the panel, in the button, in the tab's title. */
export const FINAL_MS = 60_000;

export function phase({ opens_at, closes_at, state }, now) {
  if (state === "ended" || now >= closes_at) return "ended";
  return now < opens_at ? "soon" : "open";
}
