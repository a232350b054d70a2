//! The bot drill: what share of the stock bots win, with each defence off and on.
//!
//! One sale per row, of the same size and before the same crowd. One client in ten is a bot: no browser,
//! early by half a second, with many accounts behind one address, all of which claim until they are told that
//! nothing is left. The others are people, who come within a second and a half of the opening. Where there is
//! a challenge people's devices solve it; bots solve nothing, or buy solutions at a price until their money
//! is spent. It is solved at the lowest difficulty here: who solves is what counts, not how long it takes us.
//!
//! Everybody says from which address they come, as a proxy would say it: people from one each, all accounts
//! of a bot from the same. Who believes it is a server of our own that stands behind a proxy and limits
//! addresses; that row is there where the drill may start one. What a given deployment is set to (limits,
//! hoarding) holds in every row and cannot be switched from outside. How often one account may claim and
//! cancel is tried at the end.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use client::{Api, ApiError, Login, NewSale};
use sale::{Challenge, DIFFICULTY_MIN, solve_challenge};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{sleep, sleep_until},
};

use crate::{
    RehearseError, Site,
    progress::Progress,
    site::{dev_login, server_clock},
};

/// Of the clients, one in so many is a bot.
const BOT_OF: usize = 10;
const CLIENTS_MAX: usize = 1_000;
const ACCOUNTS_MAX: usize = 1_000;
/// People's clicks come within this after the opening.
const PEOPLE_WITHIN: Duration = Duration::from_millis(1_500);
const BOTS_EARLY: Duration = Duration::from_millis(500);
/// Whoever is told to come back does so for this long.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);
/// The sale is moved to this long from now when everybody has what they need.
const LEAD_MS: i64 = 2_000;
const PREPARING_AT_ONCE_MAX: usize = 32;
const CYCLES_MAX: u64 = 100;
const HOUR_MS: i64 = 3_600_000;
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Who comes to the drill.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BotPlan {
    pub clients: usize,
    /// Of each bot.
    pub accounts: usize,
    /// Units of each sale.
    pub stock: i64,
    /// What one solution costs a bot, and what it has to spend, in minor units.
    pub solve_price: u64,
    pub budget: u64,
    pub seed: u64,
}

impl BotPlan {
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut within = |name: &str, value: u64, min: u64, max: u64| {
            if !(min..=max).contains(&value) {
                found.push(format!("{name} must be from {min} to {max}, not {value}"));
            }
        };
        within("bot-clients", self.clients as u64, BOT_OF as u64, CLIENTS_MAX as u64);
        within("bot-accounts", self.accounts as u64, 1, ACCOUNTS_MAX as u64);
        within("solve-price", self.solve_price, 1, u64::MAX);
        found
    }

    fn bots(&self) -> usize {
        self.clients / BOT_OF
    }

    /// Everybody has one of their own.
    pub fn connections(&self) -> usize {
        self.people() + self.bots() * self.accounts
    }

    fn people(&self) -> usize {
        self.clients - self.bots()
    }

    /// Accounts of one bot that come with a solution they paid for.
    fn paid_for(&self) -> usize {
        usize::try_from(self.budget / self.solve_price).unwrap_or(usize::MAX).min(self.accounts)
    }
}

/// What a row of the drill is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Defence {
    Off,
    ChallengeUnsolved,
    ChallengePaid,
    AddressLimits,
    FairStart,
    /// With a challenge that bots pay for.
    FairStartAndChallenge,
    MembersOnly,
}

impl Defence {
    const ALL: [Defence; 7] = [
        Defence::Off,
        Defence::ChallengeUnsolved,
        Defence::ChallengePaid,
        Defence::AddressLimits,
        Defence::FairStart,
        Defence::FairStartAndChallenge,
        Defence::MembersOnly,
    ];

    fn in_words(self) -> &'static str {
        match self {
            Defence::Off => "none of these",
            Defence::ChallengeUnsolved => "challenge, bots solve nothing",
            Defence::ChallengePaid => "challenge, bots pay for solving",
            Defence::AddressLimits => "limits by address",
            Defence::FairStart => "fair start",
            Defence::FairStartAndChallenge => "fair start and paid challenge",
            Defence::MembersOnly => "members only",
        }
    }

    fn has_challenge(self) -> bool {
        self == Defence::ChallengeUnsolved || self.bots_pay()
    }

    fn bots_pay(self) -> bool {
        matches!(self, Defence::ChallengePaid | Defence::FairStartAndChallenge)
    }

    /// Claims of so long are drawn from: until people have come, and those whose machine is slow.
    fn shuffle_ms(self) -> u64 {
        match self {
            Defence::FairStart | Defence::FairStartAndChallenge => {
                2 * PEOPLE_WITHIN.as_millis() as u64
            }
            _ => 0,
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrillRow {
    pub defence: Defence,
    /// Accounts of bots that had a sale token.
    pub bot_tokens: u64,
    pub won_by_bots: u64,
    pub won_by_people: u64,
    /// Of what was sold.
    pub bot_share: f64,
    /// What the bots paid for solutions, in minor units.
    pub spent: u64,
}

/// What the drill found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BotDrill {
    pub plan: BotPlan,
    pub rows: Vec<DrillRow>,
    /// How often one account could claim and cancel before it had to wait; absent if nobody stopped it.
    pub cycles_before_wait: Option<u64>,
}

impl BotDrill {
    pub(crate) fn lines(&self) -> Vec<String> {
        let BotPlan { accounts, stock, .. } = self.plan;
        let (bots, people) = (self.plan.bots(), self.plan.people());
        let mut lines = vec![
            format!(
                "Bot drill: {people} people, {bots} bots with {accounts} accounts each, {stock} units a row"
            ),
            format!(
                "{:<34}{:>12}{:>10}{:>10}{:>10}{:>10}",
                "defence", "bot tokens", "to bots", "to people", "bots' %", "spent"
            ),
        ];
        lines.extend(self.rows.iter().map(|row| {
            let DrillRow { bot_tokens, won_by_bots, won_by_people, bot_share, spent, .. } = row;
            format!(
                "{:<34}{bot_tokens:>12}{won_by_bots:>10}{won_by_people:>10}{:>10.1}{spent:>10}",
                row.defence.in_words(),
                bot_share * 100.0
            )
        }));
        lines.push(match self.cycles_before_wait {
            Some(cycles) => {
                format!("hoarding: an account waits after {cycles} claims that it cancelled")
            }
            None => {
                format!("hoarding: nobody stopped an account that cancelled {CYCLES_MAX} claims")
            }
        });
        lines
    }
}

/// Somebody who wants a unit.
struct Account {
    user: String,
    /// Where they say they come from: one of the addresses that are for tests of networks.
    from: String,
    bot: bool,
    bearer: String,
    token: Option<String>,
}

impl Account {
    fn new(user: String, from: String, bot: bool) -> Account {
        Account { user, from, bot, bearer: String::new(), token: None }
    }
}

/// One of the networks 198.18.0.0/15, which nobody has.
fn address(network: u8, n: usize) -> String {
    format!("198.{network}.{}.{}", n / 256 % 256, n % 256)
}

/// Play the drill on this deployment, and the row of limits on the one that limits addresses.
pub async fn bot_drill(
    plan: &BotPlan,
    site: &Site,
    limited: Option<&Site>,
    progress: &Progress,
) -> Result<BotDrill, RehearseError> {
    let mistakes = plan.mistakes();
    if !mistakes.is_empty() {
        return Err(RehearseError::Plan(mistakes.join("; ")));
    }
    let login = match &site.login {
        Some(login) => login.clone(),
        None => dev_login(site).await?,
    };
    let mut rows = Vec::new();
    for (n, defence) in Defence::ALL.into_iter().enumerate() {
        let site = match defence {
            Defence::AddressLimits => limited,
            _ => Some(site),
        };
        let Some(site) = site else { continue };
        progress.wait("bots");
        let drill = Drill { plan, site, login: &login, defence };
        rows.push(drill.play(plan.seed.wrapping_add(n as u64)).await?);
    }
    let cycles_before_wait = cycles(site, &login, plan.seed).await?;
    Ok(BotDrill { plan: plan.clone(), rows, cycles_before_wait })
}

struct Drill<'d> {
    plan: &'d BotPlan,
    site: &'d Site,
    login: &'d Login,
    defence: Defence,
}

impl Drill<'_> {
    async fn play(&self, seed: u64) -> Result<DrillRow, RehearseError> {
        let mut admin = self.site.admin();
        let (now_ms, _) = server_clock(&mut admin).await?;
        let sale = NewSale {
            name: format!("bot drill: {}", self.defence.in_words()),
            opens_ms: now_ms + HOUR_MS,
            closes_ms: now_ms + 2 * HOUR_MS,
            stock: self.plan.stock,
            ..NewSale::of(self.plan.stock)
        };
        let created = sale.draft(&mut admin).await?;
        let (activity, item) = (created.activity, created.items[0]);
        let path = format!("/api/v1/admin/activities/{activity}");
        let draft: Value = admin.read(&path).await?;
        edit(&mut admin, &path, &draft["version"], self.door()).await?;
        created.publish(&mut admin).await?;
        let mut accounts = self.accounts(activity);
        if self.defence == Defence::MembersOnly {
            let people: Vec<&str> =
                accounts.iter().filter(|one| !one.bot).map(|one| one.user.as_str()).collect();
            let path = format!("/api/v1/admin/lists/members?activity={activity}");
            let _: Value = admin.write(&path, &json!({"users": people})).await?;
        }
        accounts = self.prepare(accounts, item).await?;
        let published: Value = admin.read(&path).await?;
        let (now_ms, at) = server_clock(&mut admin).await?;
        let opens_ms = now_ms + LEAD_MS;
        let window = json!({"opens_at": opens_ms, "closes_at": opens_ms + HOUR_MS});
        edit(&mut admin, &path, &published["version"], window).await?;
        let opening = at + Duration::from_millis(LEAD_MS as u64);
        let row = self.rush(accounts, item, opening, seed).await;
        let end = format!("{path}/end");
        let _: Value = admin.write(&end, &json!({})).await?;
        Ok(row)
    }

    fn door(&self) -> Value {
        let door = match self.defence {
            Defence::MembersOnly => json!({"members_only": true}),
            defence if defence.has_challenge() => json!({
                "challenge": "pow", "difficulty": DIFFICULTY_MIN, "token_before_ms": 2 * HOUR_MS}),
            _ => json!({}),
        };
        match self.defence.shuffle_ms() {
            0 => json!({"door": door}),
            shuffle_ms => json!({"door": door, "shuffle_ms": shuffle_ms}),
        }
    }

    fn accounts(&self, activity: i64) -> Vec<Account> {
        let people = (0..self.plan.people())
            .map(|n| Account::new(format!("p{activity}-{n}"), address(18, n), false));
        let bots = (0..self.plan.bots()).flat_map(|bot| {
            let one = move |n: usize| {
                Account::new(format!("b{activity}-{bot}-{n}"), address(19, bot), true)
            };
            (0..self.plan.accounts).map(one)
        });
        people.chain(bots).collect()
    }

    /// May this account have a solution? People solve; bots have what they paid for.
    fn solves(&self, account: &Account) -> bool {
        let number = || account.user.rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
        match self.defence {
            _ if !account.bot => true,
            defence => defence.bots_pay() && number().is_some_and(|n| n < self.plan.paid_for()),
        }
    }

    /// Everybody signs in and asks for a sale token.
    async fn prepare(
        &self,
        accounts: Vec<Account>,
        item: i64,
    ) -> Result<Vec<Account>, RehearseError> {
        let turns = Arc::new(Semaphore::new(PREPARING_AT_ONCE_MAX));
        let mut preparing = Vec::new();
        for (n, account) in accounts.into_iter().enumerate() {
            let address = self.site.addresses[n % self.site.addresses.len()];
            let solves = self.defence.has_challenge() && self.solves(&account);
            let (turns, login) = (turns.clone(), self.login.clone());
            preparing.push(tokio::spawn(async move {
                let _turn = turns.acquire().await;
                sign_in(address, login, account, item, solves).await
            }));
        }
        let mut ready = Vec::new();
        for one in preparing {
            ready.push(one.await.map_err(std::io::Error::other)??);
        }
        Ok(ready)
    }

    async fn rush(
        &self,
        accounts: Vec<Account>,
        item: i64,
        opening: Instant,
        seed: u64,
    ) -> DrillRow {
        let mut dice = fastrand::Rng::with_seed(seed);
        let bot_tokens = accounts.iter().filter(|one| one.bot && one.token.is_some()).count();
        let mut claiming = Vec::new();
        for (n, account) in accounts.into_iter().enumerate() {
            let Some(token) = account.token else { continue };
            let address = self.site.addresses[n % self.site.addresses.len()];
            let after =
                if account.bot { Duration::ZERO } else { PEOPLE_WITHIN.mul_f64(dice.f64()) };
            let from = if account.bot { opening - BOTS_EARLY } else { opening + after };
            let until = opening + PEOPLE_WITHIN + PATIENCE;
            let (bot, of) = (account.bot, account.from);
            claiming.push(tokio::spawn(async move {
                sleep_until(from.into()).await;
                let headers = [("x-sale-token", &*token), (FORWARDED_FOR, &*of)];
                (bot, wins(address, &headers, item, until).await)
            }));
        }
        let (mut won_by_bots, mut won_by_people) = (0, 0);
        for one in claiming {
            match one.await {
                Ok((true, true)) => won_by_bots += 1,
                Ok((false, true)) => won_by_people += 1,
                _ => {}
            }
        }
        let sold: u64 = won_by_bots + won_by_people;
        let spent =
            if self.defence.bots_pay() { bot_tokens as u64 * self.plan.solve_price } else { 0 };
        DrillRow {
            defence: self.defence,
            bot_tokens: bot_tokens as u64,
            won_by_bots,
            won_by_people,
            bot_share: won_by_bots as f64 / sold.max(1) as f64,
            spent,
        }
    }
}

async fn edit(
    admin: &mut Api,
    path: &str,
    version: &Value,
    mut change: Value,
) -> Result<(), RehearseError> {
    change["version"] = version.clone();
    let response = admin.send("PATCH", path, &[], change.to_string().as_bytes()).await?;
    if response.status == 200 {
        return Ok(());
    }
    let body = String::from_utf8_lossy(&response.body).into_owned();
    let (method, path) = ("PATCH".into(), path.into());
    Err(ApiError::Status { method, path, status: response.status, body }.into())
}

async fn sign_in(
    address: SocketAddr,
    login: Login,
    mut account: Account,
    item: i64,
    solves: bool,
) -> Result<Account, ApiError> {
    let mut api = Api::new(address, None);
    account.bearer = format!("Bearer {}", login.token(&mut api, &account.user).await?);
    let headers = [("authorization", &*account.bearer), (FORWARDED_FOR, &*account.from)];
    let mut body = Vec::new();
    if solves {
        let path = format!("/api/v1/items/{item}/challenge");
        let given = api.send("POST", &path, &headers, b"").await?.json();
        let solving = tokio::task::spawn_blocking(move || {
            solve_challenge(&serde_json::from_value::<Challenge>(given).ok()?)
        });
        let altcha = solving.await.map_err(std::io::Error::other)?;
        body = json!({"altcha": altcha}).to_string().into_bytes();
    }
    let path = format!("/api/v1/items/{item}/token");
    let answer = api.send("POST", &path, &headers, &body).await?;
    if answer.status == 200 {
        account.token = answer.json()["token"].as_str().map(str::to_owned);
    }
    Ok(account)
}

/// Claims until it is decided, or the patience is over.
async fn wins(address: SocketAddr, headers: &[(&str, &str)], item: i64, until: Instant) -> bool {
    let (mut api, path) = (Api::new(address, None), format!("/api/v1/items/{item}/claims"));
    while Instant::now() < until {
        match api.send("POST", &path, headers, b"{\"quantity\":1}").await {
            Ok(response) if response.status == 202 => return true,
            Ok(response) => {
                let code = response.code().unwrap_or_default();
                if !matches!(code.as_str(), "not_started" | "too_hot" | "busy" | "rate_limited") {
                    return false;
                }
            }
            Err(_) => api = Api::new(address, None),
        }
        sleep(AGAIN).await;
    }
    false
}

/// How often one account may claim and give up what it got.
async fn cycles(site: &Site, login: &Login, seed: u64) -> Result<Option<u64>, RehearseError> {
    let mut admin = site.admin();
    let sale = NewSale { name: "bot drill: hoarding".into(), ..NewSale::of(CYCLES_MAX as i64) };
    let created = sale.create(&mut admin).await?;
    let item = created.items[0];
    let account = Account::new(format!("hoarder-{seed}"), address(19, 0), true);
    let account = sign_in(site.addresses[0], login.clone(), account, item, false).await?;
    let mut api = Api::new(site.addresses[0], None);
    let (token, bearer) = (account.token.unwrap_or_default(), account.bearer);
    let (mut cycles, until) = (0, Instant::now() + 2 * PATIENCE);
    let stopped = loop {
        let path = format!("/api/v1/items/{item}/claims");
        let headers = [("x-sale-token", token.as_str())];
        let claimed = api.send("POST", &path, &headers, b"{\"quantity\":1}").await?;
        match claimed.code().as_deref() {
            None if claimed.status == 202 => {}
            Some("cooling_down") => break Some(cycles),
            _ if Instant::now() > until || cycles >= CYCLES_MAX => break None,
            // Its unit is on the way back.
            _ => {
                sleep(AGAIN).await;
                continue;
            }
        }
        let no = claimed.json()["order_no"].as_str().unwrap_or_default().to_owned();
        let cancel = format!("/api/v1/orders/{no}/cancel");
        while api.send("POST", &cancel, &[("authorization", &bearer)], b"").await?.status != 200
            && Instant::now() < until
        {
            sleep(AGAIN).await;
        }
        cycles += 1;
    };
    let end = format!("/api/v1/admin/activities/{}/end", created.activity);
    let _: Value = admin.write(&end, &json!({})).await?;
    Ok(stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_ten_is_a_bot_and_money_buys_solutions() {
        let plan =
            BotPlan { clients: 40, accounts: 5, stock: 10, solve_price: 2, budget: 7, seed: 1 };
        assert_eq!((plan.bots(), plan.people(), plan.paid_for()), (4, 36, 3));
        assert_eq!(plan.connections(), 56);
        assert_eq!(plan.mistakes(), Vec::<String>::new());
        let bad = BotPlan { clients: 9, accounts: 0, solve_price: 0, ..plan.clone() };
        assert_eq!(bad.mistakes().len(), 3);
        let row = DrillRow {
            defence: Defence::Off,
            bot_tokens: 20,
            won_by_bots: 9,
            won_by_people: 1,
            bot_share: 0.9,
            spent: 0,
        };
        let drill = BotDrill { plan, rows: vec![row], cycles_before_wait: Some(5) };
        let text = drill.lines().join("\n");
        assert!(text.contains("90.0") && text.contains("after 5 claims"), "{text}");
    }
}
