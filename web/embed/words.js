// What the button says.

export const buttonWords = {
  en: {
    ready: "Buy now", opening: "Opens in {time}", clock: "One moment…", paused: "Paused",
    cooling: "Again in {seconds} s", queueing: "In the queue…",
    sold_out: "Sold out", ended: "Over", unpaid: "Yours: pay now", paid: "Paid", missing: "Not on sale",
    signIn: "Please sign in first.",
  },
  zh: {
    ready: "立即抢购", opening: "{time} 后开抢", clock: "请稍候…", paused: "活动暂停",
    cooling: "{seconds} 秒后可再试", queueing: "排队中…",
    sold_out: "已售罄", ended: "已结束", unpaid: "已抢到，去支付", paid: "已支付", missing: "未在售",
    signIn: "请先登录。",
  },
};

export const inWords = (lang, key, values = {}) => buttonWords[lang][key]
  .replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
