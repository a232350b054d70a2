// What the console says, in both languages, from one file for each kind of thing. The server's own words
// (codes, states, parts) are keyed `group_word`.

import { alerts } from "./words_alerts.js";
import { common } from "./words_common.js";
import { rehearsing } from "./words_rehearse.js";
import { views } from "./words_views.js";

export const words = {
  en: { ...common.en, ...alerts.en, ...views.en, ...rehearsing.en },
  zh: { ...common.zh, ...alerts.zh, ...views.zh, ...rehearsing.zh },
};
