// What went wrong, and how to tell a person.

import { fill } from "./i18n.js";

export { Problem, problemFrom, retryAfterMs } from "./answer.js";

export const problemWords = {
  en: {
    sold_out: "Sold out. If a reserved unit is not paid for, it comes back on sale.",
    already_bought: "You already have an order for this item.",
    key_reused: "Your claim from before counts; it was for another quantity.",
    not_started: "Not open yet. The button lights up by itself.",
    ended: "This sale is over.",
    bad_token: "Your pass for this sale was not accepted. Please try again.",
    invalid: "That was not accepted: {field}.",
    too_hot: "Too many people at the door right now. Please try again.",
    rate_limited: "That was a little too fast. Please wait a moment.",
    busy: "Busy for a moment. Nothing was taken, please try again.",
    unauthorized: "Please sign in first.",
    forbidden: "This is not allowed.",
    not_found: "Not found.",
    offline: "No connection. Please check your network.",
    timeout: "No answer yet. Press again: you will not be charged or counted twice.",
    failed: "Something went wrong ({status}).",
  },
  zh: {
    sold_out: "已售罄。若有人未付款，库存会重新放出。",
    already_bought: "您已经抢到过该商品。",
    key_reused: "以您之前提交的抢购为准，两次的数量不同。",
    not_started: "还没开始，到点按钮会自动亮起。",
    ended: "本场活动已结束。",
    bad_token: "抢购令牌未被接受，请再试一次。",
    invalid: "提交的内容有误：{field}。",
    too_hot: "太火爆了，请稍后再试。",
    rate_limited: "操作太快了，请稍等片刻。",
    busy: "系统繁忙，未扣任何库存，请稍后再试。",
    unauthorized: "请先登录。",
    forbidden: "没有权限。",
    not_found: "没有找到。",
    offline: "网络不可用，请检查连接。",
    timeout: "还没有收到答复。可以再点一次，不会重复下单。",
    failed: "出错了（{status}）。",
  },
};

/** Known codes in our own words; for others the server's `detail`, which already is in this language. */
export function problemText(problem, lang) {
  const words = problemWords[lang] ?? problemWords.en;
  const { detail, title, field } = problem.body ?? {};
  const known = words[problem.code];
  if (known && problem.code !== "failed") {
    return fill(known, { field: field ?? detail ?? "?", status: problem.status });
  }
  return detail || title || fill(words.failed, { status: problem.status || problem.code });
}
