// localStorage throws when the viewer has forbidden it or it is full. The shop must still sell then;
// it only forgets on reload.

const kept = new Map();

export function recall(key) {
  try {
    return localStorage.getItem(key) ?? kept.get(key) ?? null;
  } catch {
    return kept.get(key) ?? null;
  }
}

export function keep(key, value) {
  kept.set(key, value);
  try {
    localStorage.setItem(key, value);
  } catch { /* `kept` has it for this visit */ }
}

export function forget(key) {
  kept.delete(key);
  try {
    localStorage.removeItem(key);
  } catch { /* nothing was stored then */ }
}

export function recallJson(key, otherwise) {
  try {
    return JSON.parse(recall(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const keepJson = (key, value) => keep(key, JSON.stringify(value));
