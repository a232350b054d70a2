// What stands between the page and the shop right now: said at the top, over everything, for as long as it is so.

import { byId, setText } from "../element.js";
import { say } from "../i18n.js";
import { words } from "./words.js";

/** offline | stale | expired, or null if all is well. */
export function troubleOf({ online, stale, expired }) {
  if (!online) return "offline";
  if (stale) return "stale";
  return expired ? "expired" : null;
}

export function drawTrouble(facts) {
  const trouble = troubleOf(facts);
  const node = byId("trouble");
  node.hidden = trouble === null;
  if (trouble) node.dataset.kind = trouble;
  setText(node, trouble ? say(words, trouble) : "");
}
