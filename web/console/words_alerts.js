// Alerts in words: what each kind means, and what to do about it. The server says the latter in English; a test
// compares the kinds with those of the server.

import { language } from "../i18n.js";

export const alerts = {
  en: {
    alert_gate_down: "The gate does not admit everybody", alert_ledger_down: "Claims do not become orders", alert_backlog: "The claim log does not drain", alert_broker_down: "The message broker is away",
    alert_disk_low: "The disk will soon be full", alert_disk_full: "The disk is nearly full", alert_clock: "Clocks disagree", alert_webhook_failing: "Alerts are not delivered",
    alert_lanes_died: "Lanes have died", alert_job_panicked: "A job met a bug", alert_worker_died: "A worker died", alert_dead_letter: "A claim failed all its tries",
    alert_claim_stuck: "A claim is stuck", alert_reconcile: "Gate and ledger disagree", alert_payment: "Money fits no order", alert_refund_refused: "A provider refuses a refund",
    alert_undelivered: "Something cannot be delivered", alert_publish_missed: "A sale did not take place", alert_webhook_switched_off: "A webhook was switched off",
    alert_webhook_given_up: "A webhook event was given up", alert_unclosable: "An order cannot be closed",
  },
  zh: {
    alert_gate_down: "闸口无法正常放行", alert_ledger_down: "抢购无法入账", alert_backlog: "抢购日志积压", alert_broker_down: "消息队列不可用",
    alert_disk_low: "磁盘即将写满", alert_disk_full: "磁盘接近写满", alert_clock: "时钟不一致", alert_webhook_failing: "告警无法送达",
    alert_lanes_died: "排队通道崩溃", alert_job_panicked: "定时任务出现程序错误", alert_worker_died: "工作线程退出", alert_dead_letter: "抢购重试全部失败",
    alert_claim_stuck: "抢购卡住", alert_reconcile: "闸口与账本不一致", alert_payment: "款项与订单不符", alert_refund_refused: "支付渠道拒绝退款",
    alert_undelivered: "有内容无法送达", alert_publish_missed: "活动未能如期发布", alert_webhook_switched_off: "商城回调已停用",
    alert_webhook_given_up: "商城回调事件已放弃", alert_unclosable: "订单无法关闭",
  },
};

export const TODO_ZH = {
  gate_down: "单机：释放磁盘空间或修复磁盘。集群：检查 Redis 是否运行、可连接、可写入（redis-cli INFO persistence）。买家会被告知稍后再试，不会丢失任何抢购。",
  ledger_down: "检查数据库是否运行、可连接、可写入。活动照常进行：抢购保存在日志中，数据库恢复后即成为订单。",
  backlog: "检查是否有 ledger_down 告警、崩溃的工作线程或数据库慢语句；可增加工作进程。日志写满后（gate.log_claims_max）不再放行。",
  broker_down: "检查消息队列（broker）是否运行、可连接、可接收消息。活动照常进行：抢购保存在闸口自己的日志中。若长时间无法恢复，请设置 claim_log = \"native\" 并重启，抢购即成为订单。",
  disk_low: "请在下一场活动之前释放空间或扩容磁盘。",
  disk_full: "请立即释放空间。磁盘写满后（单机）不再放行，日志也无法写入。",
  clock: "检查本机与数据库主机的 NTP。未付款订单按较慢的时钟关闭。",
  webhook_failing: "检查 alerts.webhook_url 是否正确、能否从本机访问。告警保留一小时，日志中也有。",
  lanes_died: "请重启本进程，不会丢失数据；日志中有崩溃信息，请反馈。",
  job_panicked: "日志中有崩溃信息，请反馈。该任务会不断重试。",
  worker_died: "请重启本进程，不会丢失数据；日志中有崩溃信息，请反馈。",
  dead_letter: "在“死信”页查看原因，排除后重放，或作废。",
  claim_stuck: "原因中写明账本在哪里出错：排除后重启工作进程。该抢购仍在日志中并占用库存，每次启动都会重试。",
  reconcile: "在“对账”页查看剩余差异；有规则可循的已自动修复。",
  payment: "与支付渠道的账单核对，并在渠道侧退回款项。",
  refund_refused: "请与支付渠道处理。退款会不断重试直至成功。",
  undelivered: "告警写明是闸口的哪个分区、哪个支付渠道或哪条记录以及原因。会不断重试直至送达，不影响其他内容。",
  publish_missed: "请为该活动设置新的时间并发布，或将其终止；并查明为何没有带 jobs 角色的进程在运行。",
  webhook_switched_off: "修复接收端后重新启用（seckill webhooks enable），等待中的事件会随即送达。",
  webhook_given_up: "在“回调”页查看失败原因，修复接收端后重新发送。",
  unclosable: "请重新配置该支付渠道，直到其订单全部关闭。",
};

/** What the operator should do, in their language. */
export const todoOf = ({ kind, todo }) => (language() === "zh" ? TODO_ZH[kind] ?? todo : todo);
