//! One of three masters of a Redis Cluster is dead or hangs, and nobody takes its place: what lives on the
//! others goes on, at every instance, and what lived there comes back by itself.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use checker::{Answer, AnsweredClaim, check};
use client::{Api, NewSale, observe, sale_token};
use faults::services::{RedisCluster, SHARDS};
use serde_json::{Value, json};

use crate::fixtures::{
    Buyer, Deployment, Events, PARTITIONS, Profile, Sale, WEBS, blocking, until,
};

#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// `kill -9`.
    Dead,
    /// SIGSTOP: its sockets stay open, and nothing is answered.
    Hung,
}

/// Nothing that concerns the living may take longer. The longest is a push whose first hint went to a line
/// that had just died: pages are opened twice, and each waits 2 s for the part that hangs.
const STEP_MAX: Duration = Duration::from_secs(20);
/// A hint that is not heard by then is lost.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// How long buyers of the sale that times out have to pay.
const PAY_WITHIN_MS: i64 = 2_000;
const UNITS: i64 = 1_000;

/// A cluster in which a master that is away is missed, and the others serve on.
pub(crate) fn start_cluster() -> std::io::Result<RedisCluster> {
    let cluster = RedisCluster::start()?;
    for node in cluster.nodes() {
        node.call(&["CONFIG", "SET", "cluster-require-full-coverage", "no"])?;
        node.call(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"])?;
    }
    Ok(cluster)
}

/// One activity: an item in each partition.
struct Items {
    first: i64,
}

impl Items {
    fn in_partition(&self, partition: usize) -> i64 {
        let wanted = |item: &i64| *item as usize % PARTITIONS == partition;
        (self.first..self.first + PARTITIONS as i64).find(wanted).unwrap()
    }
}

struct Story {
    sale: Sale,
    /// Orders of it are paid in half an hour.
    patient: Items,
    /// Orders of it time out.
    hasty: Items,
    dead: usize,
    living: usize,
    /// What took how long at the most.
    times: BTreeMap<&'static str, Duration>,
    buyers: usize,
    /// Whose orders are of what is away.
    stranded: Vec<(Buyer, String)>,
}

impl Story {
    async fn begin(cluster: &RedisCluster) -> Story {
        let deployment = Deployment::new(Profile::Cluster).env("SECKILL_REDIS_URL", cluster.urls());
        let new = NewSale { items: PARTITIONS, ..NewSale::of(UNITS) };
        let mut sale = deployment.open_sale(new.clone()).await;
        let patient = Items { first: sale.item };
        sale.instead(new.pay_within_ms(PAY_WITHIN_MS)).await;
        let hasty = Items { first: sale.item };
        let home = |p: usize| cluster.shard_of(&format!("x:{{p{p}}}:orders")).unwrap();
        let dead = 0;
        let living = (1..PARTITIONS).find(|p| home(*p) != home(dead)).unwrap();
        let times = BTreeMap::new();
        Story { sale, patient, hasty, dead, living, times, buyers: 0, stranded: Vec::new() }
    }

    fn webs(&self) -> Vec<SocketAddr> {
        WEBS.iter().map(|place| self.sale.process(*place).address).collect()
    }

    /// Somebody new at this instance.
    async fn buyer(&mut self, address: SocketAddr, item: i64) -> Buyer {
        self.buyers += 1;
        let user = format!("u{}", self.buyers);
        let mut api = Api::new(address, None);
        let jwt = self.sale.deployment.login().token(&mut api, &user).await.unwrap();
        let sale_token = sale_token(&mut api, &format!("Bearer {jwt}"), item).await.unwrap();
        Buyer { api: Api::new(address, Some(&jwt)), user, item, sale_token }
    }

    async fn claim(&mut self, buyer: &mut Buyer) -> Answer {
        let answer = buyer.claim().await;
        let (user, item) = (buyer.user.clone(), buyer.item);
        self.sale.history.claims.push(AnsweredClaim {
            user,
            item,
            key: None,
            answer: answer.clone(),
        });
        answer
    }

    async fn buy(&mut self, buyer: &mut Buyer) -> String {
        match self.claim(buyer).await {
            Answer::Admitted { order_no } => order_no.to_string(),
            other => panic!("{} was told {other:?}", buyer.user),
        }
    }

    /// They had something, and it goes back: they may buy again.
    async fn buys_again(&mut self, buyer: &mut Buyer) -> String {
        loop {
            match self.claim(buyer).await {
                Answer::Admitted { order_no } => return order_no.to_string(),
                Answer::AlreadyBought { .. } => tokio::time::sleep(Duration::from_millis(20)).await,
                other => panic!("{} was told {other:?}", buyer.user),
            }
        }
    }

    fn took(&mut self, what: &'static str, since: Instant) {
        let took = since.elapsed();
        let worst = self.times.entry(what).or_default();
        *worst = took.max(*worst);
    }

    /// Orders of what will be away: two of whom one gives up, and one that times out.
    async fn shop_before(&mut self) {
        let (patient, hasty) =
            (self.patient.in_partition(self.dead), self.hasty.in_partition(self.dead));
        for (n, item) in [patient, patient, hasty].into_iter().enumerate() {
            let mut buyer = self.buyer(self.webs()[n % WEBS.len()], item).await;
            let no = self.buy(&mut buyer).await;
            buyer.order_becomes(&no, "unpaid").await;
            self.stranded.push((buyer, no));
        }
        self.shop_goes_on().await;
        self.times.clear();
    }

    /// An order of what is away is given up; the unit goes back when it can.
    async fn cancel_what_is_away(&mut self) {
        let (buyer, no) = &mut self.stranded[0];
        let path = format!("/api/v1/orders/{no}/cancel");
        assert_eq!(buyer.api.post(&path, &json!({})).await.unwrap().status, 200);
    }

    /// What was given up, or timed out, while it was away can be bought again.
    async fn bought_back(&mut self) {
        let login = self.sale.deployment.login();
        for (mut buyer, no) in std::mem::take(&mut self.stranded) {
            // Nobody keeps a silent connection open for minutes.
            let address = self.webs()[0];
            let jwt = login.token(&mut Api::new(address, None), &buyer.user).await.unwrap();
            buyer.api = Api::new(address, Some(&jwt));
            if buyer.order(&no).await["status"] != "unpaid" {
                self.buys_again(&mut buyer).await;
            }
        }
    }

    /// All that a shop does, at each of its instances, with what does not live on the one that is away.
    async fn shop_goes_on(&mut self) {
        for address in self.webs() {
            self.sells(address).await;
            self.pushes(address).await;
            self.returns(address).await;
            self.times_out(address).await;
            self.reconciles(address).await;
            self.shows_all_at_a_glance(address).await;
        }
    }

    async fn sells(&mut self, address: SocketAddr) {
        let mut buyer = self.buyer(address, self.patient.in_partition(self.living)).await;
        let asked = Instant::now();
        let no = self.buy(&mut buyer).await;
        self.took("sell", asked);
        buyer.order_becomes(&no, "unpaid").await;
        self.took("settle", asked);
        let cashier = buyer.open_payment(&no).await;
        assert_eq!(buyer.at_the_cashier(&cashier, "pay").await.status, 200);
        let paid = Instant::now();
        buyer.order_becomes(&no, "paid").await;
        self.took("pay", paid);
    }

    /// A hint that was on its way when a line died is lost, and pages ask by themselves now and then. News
    /// reach the pages of every instance again as soon as the lines live.
    async fn pushes(&mut self, address: SocketAddr) {
        let asked = Instant::now();
        let login = self.sale.deployment.login();
        loop {
            let mut buyer = self.buyer(address, self.patient.in_partition(self.living)).await;
            let mut pages = Vec::new();
            for web in self.webs() {
                pages.push(Events::open(web, &login, &buyer.user).await);
            }
            let no = self.buy(&mut buyer).await;
            let hearing = pages.iter_mut().map(|page| page.hear_of(&no, "unpaid"));
            let heard = futures_util::future::join_all(hearing);
            if tokio::time::timeout(HEARD_WITHIN, heard).await.is_ok() {
                break self.took("push", asked);
            }
        }
    }

    async fn returns(&mut self, address: SocketAddr) {
        let mut buyer = self.buyer(address, self.patient.in_partition(self.living)).await;
        let no = self.buy(&mut buyer).await;
        buyer.order_becomes(&no, "unpaid").await;
        let path = format!("/api/v1/orders/{no}/cancel");
        assert_eq!(buyer.api.post(&path, &json!({})).await.unwrap().status, 200);
        let cancelled = Instant::now();
        self.buys_again(&mut buyer).await;
        self.took("return after a cancel", cancelled);
    }

    async fn times_out(&mut self, address: SocketAddr) {
        let mut buyer = self.buyer(address, self.hasty.in_partition(self.living)).await;
        let no = self.buy(&mut buyer).await;
        let bought = Instant::now();
        buyer.order_becomes(&no, "closed").await;
        self.took("time out", bought);
        self.buys_again(&mut buyer).await;
        self.took("return after a time-out", bought);
    }

    /// Its operator.
    fn admin(&self, address: SocketAddr) -> Api {
        let place =
            WEBS.iter().find(|place| self.sale.process(**place).address == address).unwrap();
        self.sale.process(*place).admin()
    }

    /// An operator looks there when something is down.
    async fn shows_all_at_a_glance(&mut self, address: SocketAddr) {
        let asked = Instant::now();
        let overview: Value = self.admin(address).read("/api/v1/admin/overview").await.unwrap();
        self.took("overview", asked);
        let living = self.patient.in_partition(self.living);
        let items = overview["items"].as_array().unwrap();
        let shown = items.iter().find(|item| item["item_id"] == living).unwrap();
        assert!(shown["in_flight"].is_u64(), "{overview:#}");
    }

    async fn reconciles(&mut self, address: SocketAddr) {
        let asked = Instant::now();
        let mut admin = self.admin(address);
        let report = client::reconcile(&mut admin, "").await.unwrap();
        self.took("reconcile", asked);
        let living = self.patient.in_partition(self.living);
        let items = report["items"].as_array().unwrap();
        let compared = items.iter().find(|item| item["item_id"] == living);
        let verdict = compared.map(|item| item["verdict"].as_str().unwrap());
        assert!(matches!(verdict, Some("agree" | "moving")), "{report:#}");
    }

    async fn refuses_what_is_away(&mut self) {
        for address in self.webs() {
            let mut buyer = self.buyer(address, self.patient.in_partition(self.dead)).await;
            let asked = Instant::now();
            assert_eq!(self.claim(&mut buyer).await, Answer::Refused("busy".into()));
            self.took("refuse what is away", asked);
        }
    }

    /// From here on: until the item that was away is sold at each instance again.
    async fn comes_back(&mut self) {
        let back = Instant::now();
        for address in self.webs() {
            let mut buyer = self.buyer(address, self.patient.in_partition(self.dead)).await;
            let admitted = |answer: &Answer| matches!(answer, Answer::Admitted { .. });
            until("it sells again", async || self.claim(&mut buyer).await, admitted).await;
            println!("{address} sells it {:.1?} after the master was back", back.elapsed());
        }
        self.sale.settle().await;
        println!("all is settled {:.1?} after the master was back", back.elapsed());
    }

    async fn must_hold(&self) {
        self.sale.settle().await;
        let first = self.patient.first;
        let items: Vec<i64> = (first..first + 2 * PARTITIONS as i64).collect();
        let observed = observe(&mut self.sale.admin(), &items).await.unwrap();
        let violations = check(&self.sale.history, &observed);
        assert!(violations.is_empty(), "{violations:#?}");
        let report = client::reconcile(&mut self.sale.admin(), "heal=true").await.unwrap();
        assert_eq!(report["left"], 0, "{report:#}");
        println!("reconcile healed {}", report["healed"]);
    }
}

async fn one_master_is_away(trouble: Trouble, lasting: Duration) {
    let cluster = Arc::new(blocking(start_cluster).await);
    let mut story = Story::begin(&cluster).await;
    story.shop_before().await;
    let shard = cluster.shard_of(&format!("x:{{p{}}}:orders", story.dead)).unwrap();
    assert!(shard < SHARDS);
    let primary = cluster.clone();
    blocking(move || match trouble {
        Trouble::Dead => primary.primary(shard)?.kill(),
        Trouble::Hung => primary.primary(shard)?.pause(),
    })
    .await;
    let away = Instant::now();
    story.cancel_what_is_away().await;
    let mut rounds = 0;
    while away.elapsed() < lasting || rounds == 0 {
        story.shop_goes_on().await;
        story.refuses_what_is_away().await;
        rounds += 1;
    }
    println!("{trouble:?} for {:.1?}, {rounds} rounds; the worst times:", away.elapsed());
    for (what, took) in &story.times {
        println!("  {what}: {took:.1?}");
    }
    let healing = cluster.clone();
    blocking(move || match trouble {
        Trouble::Dead => healing.heal(),
        Trouble::Hung => healing.nodes()[shard].resume(),
    })
    .await;
    story.comes_back().await;
    story.bought_back().await;
    story.must_hold().await;
    for (what, took) in &story.times {
        assert!(*took < STEP_MAX, "{what} took {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_stops_nothing_but_its_own_partitions() {
    one_master_is_away(Trouble::Dead, Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_master_stops_nothing_but_its_own_partitions() {
    one_master_is_away(Trouble::Hung, Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes: cargo xtask torture"]
async fn a_master_that_is_dead_for_two_minutes_stops_nothing_but_its_own_partitions() {
    one_master_is_away(Trouble::Dead, Duration::from_secs(120)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes: cargo xtask torture"]
async fn a_master_that_hangs_for_two_minutes_stops_nothing_but_its_own_partitions() {
    one_master_is_away(Trouble::Hung, Duration::from_secs(120)).await;
}
