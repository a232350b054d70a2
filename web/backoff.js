// How long to wait before asking again. Always with jitter: a crowd that failed together must not
// come back together.

const FIRST_MS = 1_000;
const LONGEST_MS = 30_000;

export function backoffMs(failures, random = Math.random) {
  const full = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 16));
  return full * (0.5 + 0.5 * random());
}

export const between = (low, high, random = Math.random) => low + (high - low) * random();

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
