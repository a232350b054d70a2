//! What the shop's backend is told: by the transaction that did it, once, and in order for each order.

use ledger::{
    DeliveryFilter, DeliveryState, ForgetBefore, NewDelivery, NewWebhook, OutboxKind,
    OutboxMessage, Replayed, Tried, TriedOutcome, WebhookChange, WebhookEndpoint, WebhookEvent,
    WebhookKind, WebhookKinds, WebhookSource,
};
use sale::{ActivityMove, CloseReason, Millis, OrderNo, Secret, VoidReason};

use crate::{NOON_MS, Shop, audit_entry, check, given_back, numbers_of};

const PAUSE_MS_MAX: Millis = 3_600_000;

impl Shop {
    async fn endpoint(&self, kinds: &[WebhookKind]) -> WebhookEndpoint {
        let new = NewWebhook {
            url: "https://shop.example/hook".into(),
            description: "the shop".into(),
            kinds: WebhookKinds::of(kinds),
            secret: Secret::new("whsec_one"),
            source: WebhookSource::Api,
        };
        let entry = audit_entry("webhook.create");
        self.add_webhook(&new, 16, &entry, self.now()).await.unwrap().unwrap()
    }

    /// What waits in the outbox to be told, with the rows it is in.
    async fn told(&self) -> Vec<WebhookEvent> {
        let rows = self.due_rows(OutboxKind::Webhook, self.now(), 1_000).await;
        let events = rows.into_iter().flat_map(|row| match row.message {
            Ok(OutboxMessage::Webhook { events }) => events,
            other => panic!("{other:?}"),
        });
        events.collect()
    }

    async fn forget_told(&self) {
        let rows = self.due_rows(OutboxKind::Webhook, self.now(), 1_000).await;
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        self.outbox_done(&ids).await.unwrap();
    }

    /// Spreads made-up events about these subjects.
    async fn spread(&self, endpoint: i64, events: &[(&str, WebhookKind)]) {
        let new: Vec<NewDelivery> = events
            .iter()
            .map(|(subject, kind)| NewDelivery {
                endpoint,
                event_id: format!("evt_{subject}_{}", kind.as_str()),
                kind: *kind,
                subject: (*subject).into(),
                body: "{}".into(),
                created_ms: self.now(),
            })
            .collect();
        self.spread_webhooks(&[], &new).await.unwrap();
    }

    async fn due_events(&self, endpoint: i64, now_ms: Millis) -> Vec<String> {
        let due = self.webhooks_due(endpoint, now_ms, PAUSE_MS_MAX, 100).await.unwrap();
        due.into_iter().map(|one| one.event_id).collect()
    }

    async fn tried(&self, endpoint: i64, event_id: &str, outcome: TriedOutcome) {
        let all = self.webhook_deliveries(&all_of(endpoint)).await.unwrap();
        let one = all.into_iter().find(|one| one.event_id == event_id).unwrap();
        let tried = Tried { id: one.id, subject: one.subject, status: Some(200), outcome };
        self.webhooks_tried(endpoint, &[tried], self.now()).await.unwrap();
    }
}

fn all_of(endpoint: i64) -> DeliveryFilter {
    DeliveryFilter { endpoint, state: None, subject: None, before: None, limit: 100 }
}

fn orders(kind: WebhookKind, orders: &[OrderNo]) -> WebhookEvent {
    WebhookEvent::Orders { kind, orders: orders.to_vec() }
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_written() {
    check(async |shop| {
        let activity = shop.activity_of(&[1]).await;
        shop.publish(activity.id).await;
        shop.paid(activity.items[0].id, "ann").await;
        assert_eq!(shop.tell_opened(shop.now()).await.unwrap(), 0);
        shop.move_activity(activity.id, ActivityMove::End, shop.now()).await.unwrap();
        assert_eq!(shop.told().await, []);
        // Nor what nobody wants to know.
        let endpoint = shop.endpoint(&[WebhookKind::OrderRefunded]).await;
        let item = shop.sale_of(5).await;
        let (order, notice) = shop.paid(item.id, "ann").await;
        assert_eq!(shop.told().await, []);
        shop.start_refund(order.order_no, shop.now()).await.unwrap();
        shop.refunded(&given_back(&notice), shop.now()).await.unwrap();
        let refunded = orders(WebhookKind::OrderRefunded, &[order.order_no]);
        assert_eq!(shop.told().await, [refunded]);
        shop.forget_told().await;
        shop.remove_webhook(endpoint.id, &audit_entry("webhook.remove"), shop.now()).await.unwrap();
        shop.bought(item.id, "bob", 1).await;
        assert_eq!((shop.told().await, shop.webhook_endpoints().await.unwrap()), (vec![], vec![]));
    })
    .await;
}

#[tokio::test]
async fn each_transaction_tells_in_one_row_what_it_did() {
    check(async |shop| {
        shop.endpoint(&[]).await;
        let item = shop.sale_of(1_000).await;
        let crowd = shop.crowd(item.id, 1_001);
        shop.settle(item.id, &crowd).await.unwrap();
        let rows = shop.due_rows(OutboxKind::Webhook, shop.now(), 10).await;
        assert_eq!(rows.len(), 1, "a thousand orders are one row");
        let numbers = numbers_of(&crowd);
        let told = shop.told().await;
        assert_eq!(told[0], orders(WebhookKind::OrderCreated, &numbers[..1_000]));
        assert_eq!(told[1], orders(WebhookKind::OrderVoid, &numbers[1_000..]));
        let sold_out = |event: &WebhookEvent| match event {
            WebhookEvent::Item { kind, item, stock, version } => (*kind, *item, *stock, *version),
            other => panic!("{other:?}"),
        };
        let first = sold_out(&told[2]);
        assert_eq!((first.0, first.1, first.2), (WebhookKind::ItemSoldOut, item.id, 0));
        shop.forget_told().await;
        // Settled again, it is told no more.
        shop.settle(item.id, &crowd).await.unwrap();
        assert_eq!(shop.told().await, []);

        let closed = &numbers[..2];
        shop.close(closed, CloseReason::Cancelled, shop.now()).await.unwrap();
        let told = shop.told().await;
        assert_eq!(told[0], orders(WebhookKind::OrderClosed, closed));
        let back = sold_out(&told[1]);
        assert_eq!((back.0, back.2), (WebhookKind::ItemBackInStock, 2));
        assert!(back.3 > first.3, "one time is told from the next");
        shop.forget_told().await;

        shop.adjust_stock(item.id, -2, shop.number(), shop.now()).await.unwrap();
        assert_eq!(shop.told().await[0].kind(), WebhookKind::ItemSoldOut);
        shop.forget_told().await;
        let lost = shop.claim(item.id, "lost", 1);
        shop.void(std::slice::from_ref(&lost), VoidReason::Lost, shop.now()).await.unwrap();
        assert_eq!(shop.told().await, [orders(WebhookKind::OrderVoid, &[lost.order_no])]);
    })
    .await;
}

#[tokio::test]
async fn an_activity_is_told_to_open_once_and_to_end_once() {
    check(async |shop| {
        shop.endpoint(&[]).await;
        let activity = shop.activity_of(&[1]).await;
        let before_ms = NOON_MS - 1;
        assert_eq!(shop.tell_opened(NOON_MS).await.unwrap(), 0, "a draft");
        shop.publish(activity.id).await;
        assert_eq!(shop.tell_opened(before_ms).await.unwrap(), 0, "not yet");
        assert_eq!(shop.tell_opened(NOON_MS).await.unwrap(), 1);
        assert_eq!(shop.tell_opened(NOON_MS).await.unwrap(), 0);
        for _ in 0..2 {
            shop.move_activity(activity.id, ActivityMove::End, shop.now()).await.unwrap();
        }
        let kinds: Vec<WebhookKind> = shop.told().await.iter().map(WebhookEvent::kind).collect();
        assert_eq!(kinds, [WebhookKind::ActivityOpened, WebhookKind::ActivityEnded]);
    })
    .await;
}

#[tokio::test]
async fn events_of_an_order_are_due_one_after_the_other_and_others_overtake() {
    use WebhookKind::{OrderClosed, OrderCreated, OrderPaid, OrderRefunded};
    check(async |shop| {
        let id = shop.endpoint(&[]).await.id;
        shop.spread(id, &[("A", OrderCreated), ("A", OrderPaid), ("B", OrderCreated)]).await;
        shop.spread(id, &[("B", OrderClosed), ("A", OrderRefunded)]).await;
        // Whoever spreads an event again changes nothing.
        shop.spread(id, &[("A", OrderCreated)]).await;
        assert_eq!(
            shop.due_events(id, NOON_MS).await,
            ["evt_A_order.created", "evt_B_order.created"]
        );
        let later = TriedOutcome::Again { next_try_ms: NOON_MS + 5_000, cause: "503".into() };
        shop.tried(id, "evt_A_order.created", later).await;
        assert_eq!(shop.due_events(id, NOON_MS).await, ["evt_B_order.created"]);
        shop.tried(id, "evt_B_order.created", TriedOutcome::Taken).await;
        assert_eq!(shop.due_events(id, NOON_MS).await, ["evt_B_order.closed"]);
        // A clock that was set back stretches no pause beyond the longest.
        let back_ms = NOON_MS - PAUSE_MS_MAX;
        assert!(shop.due_events(id, back_ms).await.contains(&"evt_A_order.created".to_owned()));
        // Who takes again is told at once of all that waited.
        shop.webhook_failing(id, Some(NOON_MS)).await.unwrap();
        shop.webhook_failing(id, None).await.unwrap();
        for event in ["evt_A_order.created", "evt_A_order.paid", "evt_A_order.refunded"] {
            assert!(shop.due_events(id, NOON_MS).await.contains(&event.to_owned()), "{event}");
            shop.tried(id, event, TriedOutcome::Taken).await;
        }
        shop.tried(id, "evt_B_order.closed", TriedOutcome::Taken).await;
        let lag = shop.webhook_lag(id).await.unwrap();
        assert_eq!((lag.pending, lag.failed, lag.oldest_ms), (0, 0, None));
    })
    .await;
}

#[tokio::test]
async fn what_was_given_up_takes_its_order_along_and_is_replayed_in_order() {
    use WebhookKind::{OrderClosed, OrderCreated, OrderPaid, OrderRefunded};
    check(async |shop| {
        let id = shop.endpoint(&[]).await.id;
        shop.spread(id, &[("A", OrderCreated), ("A", OrderPaid), ("B", OrderCreated)]).await;
        let gone = || TriedOutcome::GivenUp { cause: "400 for three days".into() };
        shop.tried(id, "evt_A_order.created", gone()).await;
        // What comes later is not sent before it, either.
        shop.spread(id, &[("A", OrderRefunded)]).await;
        assert_eq!(shop.due_events(id, NOON_MS).await, ["evt_B_order.created"]);
        let failed = DeliveryFilter { state: Some(DeliveryState::Failed), ..all_of(id) };
        let failed = shop.webhook_deliveries(&failed).await.unwrap();
        let events: Vec<&str> = failed.iter().map(|one| one.event_id.as_str()).collect();
        assert_eq!(events, ["evt_A_order.refunded", "evt_A_order.paid", "evt_A_order.created"]);
        assert_eq!(failed[2].cause.as_deref(), Some("400 for three days"));

        // Whichever of them is asked for.
        let entry = audit_entry("webhook.replay");
        let replayed = shop.replay_webhook(id, failed[1].id, &entry, NOON_MS).await.unwrap();
        assert_eq!(replayed, Replayed::Again(3));
        let again = shop.replay_webhook(id, failed[1].id, &entry, NOON_MS).await.unwrap();
        assert_eq!(again, Replayed::OnItsWay);
        let nobody = shop.replay_webhook(id + 1, failed[1].id, &entry, NOON_MS).await.unwrap();
        assert_eq!(nobody, Replayed::NotFound);
        for event in ["evt_A_order.created", "evt_A_order.paid", "evt_A_order.refunded"] {
            assert!(shop.due_events(id, NOON_MS).await.contains(&event.to_owned()), "{event}");
            shop.tried(id, event, TriedOutcome::Taken).await;
        }
        // What was delivered can be sent once more.
        let replayed = shop.replay_webhook(id, failed[2].id, &entry, NOON_MS).await.unwrap();
        assert_eq!(replayed, Replayed::Again(1));
        shop.tried(id, "evt_A_order.created", TriedOutcome::Taken).await;

        // All that failed, page by page.
        shop.tried(id, "evt_B_order.created", gone()).await;
        shop.spread(id, &[("B", OrderClosed), ("C", OrderCreated)]).await;
        shop.tried(id, "evt_C_order.created", gone()).await;
        assert_eq!(shop.replay_failed_webhooks(id, NOON_MS + 1, 10).await.unwrap(), 0);
        assert_eq!(shop.replay_failed_webhooks(id, NOON_MS, 2).await.unwrap(), 2);
        assert_eq!(shop.replay_failed_webhooks(id, NOON_MS, 2).await.unwrap(), 1);
        assert_eq!(
            shop.due_events(id, NOON_MS).await,
            ["evt_B_order.created", "evt_C_order.created"]
        );
    })
    .await;
}

#[tokio::test]
async fn of_two_who_spread_the_same_rows_one_does() {
    check(async |shop| {
        let id = shop.endpoint(&[]).await.id;
        let item = shop.sale_of(5).await;
        let order = shop.bought(item.id, "ann", 1).await;
        let rows = shop.due_rows(OutboxKind::Webhook, NOON_MS, 10).await;
        let rows: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let new = NewDelivery {
            endpoint: id,
            event_id: format!("evt_{}_created", order.order_no),
            kind: WebhookKind::OrderCreated,
            subject: order.order_no.to_string(),
            body: "{}".into(),
            created_ms: NOON_MS,
        };
        shop.spread_webhooks(&rows, std::slice::from_ref(&new)).await.unwrap();
        assert!(shop.spread_webhooks(&rows, &[new]).await.is_err(), "they are gone");
        assert_eq!(shop.webhook_deliveries(&all_of(id)).await.unwrap().len(), 1);
        assert_eq!(shop.told().await, []);
    })
    .await;
}

#[tokio::test]
async fn endpoints_are_bounded_changed_rotated_and_audited() {
    check(async |shop| {
        let first = shop.endpoint(&[WebhookKind::OrderPaid]).await;
        assert!(first.enabled && first.kinds.list() == [WebhookKind::OrderPaid]);
        assert_eq!(format!("{first:?}").matches("whsec").count(), 0, "{first:?}");
        let new = NewWebhook {
            url: "https://other.example/".into(),
            description: String::new(),
            kinds: WebhookKinds::ALL,
            secret: Secret::new("whsec_other"),
            source: WebhookSource::Api,
        };
        let entry = audit_entry("webhook.create");
        assert_eq!(shop.add_webhook(&new, 1, &entry, NOON_MS).await.unwrap(), None);

        let rotated = shop
            .rotate_webhook(first.id, &Secret::new("whsec_two"), NOON_MS + 9, &entry, NOON_MS)
            .await
            .unwrap();
        assert_eq!(rotated.secret.expose(), "whsec_two");
        let (previous, until_ms) = rotated.previous.unwrap();
        assert_eq!((previous.expose(), until_ms), ("whsec_one", NOON_MS + 9));

        // It is switched off for failing, once, and somebody switches it on.
        shop.webhook_failing(first.id, Some(NOON_MS)).await.unwrap();
        assert!(shop.switch_webhook_off(first.id, "410 Gone", NOON_MS).await.unwrap());
        assert!(!shop.switch_webhook_off(first.id, "again", NOON_MS).await.unwrap());
        let off = shop.webhook_endpoint(first.id).await.unwrap().unwrap();
        assert_eq!((off.enabled, off.reason.as_deref()), (false, Some("410 Gone")));
        let on = WebhookChange { enabled: Some(true), ..WebhookChange::default() };
        let on = shop.change_webhook(first.id, &on, &entry, NOON_MS).await.unwrap();
        assert_eq!((on.enabled, on.reason, on.failing_since_ms), (true, None, None));

        assert!(shop.remove_webhook(first.id, &entry, NOON_MS).await.unwrap());
        assert!(!shop.remove_webhook(first.id, &entry, NOON_MS).await.unwrap());
        assert_eq!(shop.webhook_endpoint(first.id).await.unwrap(), None);
        let written = shop.audit_log(None, 100).await.unwrap();
        assert_eq!(written.iter().filter(|row| row.action == "webhook.create").count(), 4);
        assert_eq!(written[3].target, format!("webhook:{}", first.id));
    })
    .await;
}

#[tokio::test]
async fn those_of_the_settings_are_what_the_settings_say() {
    check(async |shop| {
        let api = shop.endpoint(&[]).await;
        let new = |url: &str, secret: &str| NewWebhook {
            url: url.into(),
            description: String::new(),
            kinds: WebhookKinds::ALL,
            secret: Secret::new(secret),
            source: WebhookSource::Settings,
        };
        let put = async |wanted: &[NewWebhook]| {
            shop.put_settings_webhooks(wanted, NOON_MS + 9, NOON_MS).await.unwrap();
            shop.webhook_endpoints().await.unwrap()
        };
        let two = [new("http://10.0.0.1/", "whsec_a"), new("http://10.0.0.2/", "whsec_b")];
        let made = put(&two).await;
        assert_eq!(made.len(), 3);
        assert_eq!(put(&two).await, made, "a restart changes nothing");
        let now = put(&[new("http://10.0.0.2/", "whsec_c")]).await;
        assert_eq!(now.len(), 2);
        assert_eq!((now[0].id, now[1].id), (api.id, made[2].id));
        assert_eq!(now[1].secret.expose(), "whsec_c");
        assert_eq!(now[1].previous.as_ref().unwrap().0.expose(), "whsec_b");
    })
    .await;
}

#[tokio::test]
async fn old_deliveries_are_forgotten_and_removed_endpoints_go_with_theirs() {
    use WebhookKind::{OrderCreated, OrderPaid};
    check(async |shop| {
        let id = shop.endpoint(&[]).await.id;
        shop.spread(id, &[("A", OrderCreated), ("A", OrderPaid), ("B", OrderCreated)]).await;
        shop.tried(id, "evt_A_order.created", TriedOutcome::Taken).await;
        let before = |delivered_ms, others_ms| ForgetBefore {
            delivered_ms,
            others_ms,
            removed_ms: NOON_MS + 1,
        };
        let left = async || shop.webhook_deliveries(&all_of(id)).await.unwrap().len();
        assert!(!shop.forget_webhooks(&before(NOON_MS, NOON_MS), 10).await.unwrap());
        assert_eq!(left().await, 3);
        assert!(!shop.forget_webhooks(&before(NOON_MS + 1, NOON_MS), 10).await.unwrap());
        assert_eq!(left().await, 2);
        // Behind one that is forgotten nobody waits for ever.
        shop.spread(id, &[("B", OrderPaid)]).await;
        shop.back_door
            .run("UPDATE tb_webhook_delivery SET created_at = 1 WHERE event_id = 'evt_B_order.created'")
            .await
            .unwrap();
        shop.forget_webhooks(&before(0, NOON_MS), 10).await.unwrap();
        assert_eq!(shop.due_events(id, NOON_MS).await, ["evt_A_order.paid", "evt_B_order.paid"]);

        shop.remove_webhook(id, &audit_entry("webhook.remove"), NOON_MS).await.unwrap();
        assert!(shop.forget_webhooks(&before(0, 0), 1).await.unwrap(), "there is more");
        while shop.forget_webhooks(&before(0, 0), 1).await.unwrap() {}
        assert_eq!(left().await, 0);
        shop.forget_webhooks(&before(0, 0), 1).await.unwrap();
        let rows = shop.back_door.run("DELETE FROM tb_webhook_endpoint").await;
        assert!(rows.is_ok());
    })
    .await;
}
