// Where a sale stands, by the server's clock.

export function phase({ opens_at, closes_at, state }, now) {
  if (state === "ended" || now >= closes_at) return "ended";
  return now < opens_at ? "soon" : "open";
}
