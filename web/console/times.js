// Times as an input of the browser has them: without a zone, in that of whoever sits before it.

/** 7 is "07". */
export const two = (n) => String(n).padStart(2, "0");

/** 1800000000000 is "2027-01-15T16:00:00" where the clock says so. */
export function toLocal(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export const fromLocal = (text) => new Date(text).getTime();
