// What a countdown shows, and when it must be drawn again.

/** Rounded up, so that "1" stands until the moment itself and "0" is never shown too early. */
export function split(ms) {
  const total = Math.max(0, Math.ceil(ms / 1_000));
  return {
    days: Math.floor(total / 86_400),
    hours: Math.floor(total / 3_600) % 24,
    minutes: Math.floor(total / 60) % 60,
    seconds: total % 60,
  };
}

export const twoDigits = (n) => String(n).padStart(2, "0");

/** "29:58", or "1:02:03" from an hour on. */
export function clockText(ms) {
  const { days, hours, minutes, seconds } = split(ms);
  const tail = `${twoDigits(minutes)}:${twoDigits(seconds)}`;
  const allHours = days * 24 + hours;
  return allHours > 0 ? `${allHours}:${tail}` : tail;
}

/**
 * Milliseconds until the next change of any countdown. All of them change on whole seconds before
 * their moment, so a page drawn then lights its button at the opening and not up to a second later.
 *
 * Counted from the time that was drawn: timers may fire a hair early, and an opening that passes
 * between the drawing and this call must not be taken for drawn.
 */
export function nextTick(drawnAt, moments, now = drawnAt) {
  let delay = 1_000;
  for (const moment of moments) {
    const left = moment - drawnAt;
    if (left > 0) delay = Math.min(delay, left % 1_000 || 1_000);
  }
  // Without a floor a timer that fires early would make the page spin until the moment.
  return Math.max(delay - (now - drawnAt), 5);
}
