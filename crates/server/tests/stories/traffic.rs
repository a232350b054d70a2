//! Buyers who keep coming in the background of a story, whatever breaks meanwhile.
//!
//! Every buyer claims one unit with a key of their own. Who gets no answer, or is told *busy*, comes
//! back later with the same key, at any of the servers; who is admitted keeps the receipt.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use checker::{Answer, AnsweredClaim};
use client::Connection;
use sale::{ItemId, SaleToken, UserId};
use tokio::task::JoinHandle;

use crate::fixtures::{PATIENCE, Sale, now_ms};

const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// What is shown of a story that does not go on.
const LAST_ANSWERS: usize = 10;
const LAST_LINES: usize = 200;
/// How long a visitor thinks before the next claim.
const PAUSE: Duration = Duration::from_millis(40);

/// One answer, with all that a story may ask about it.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) user: String,
    pub(crate) address: SocketAddr,
    pub(crate) sent: Instant,
    pub(crate) at: Instant,
    pub(crate) answer: Answer,
    pub(crate) receipt: Option<String>,
}

impl Heard {
    pub(crate) fn is_admitted(&self) -> bool {
        matches!(self.answer, Answer::Admitted { .. })
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.answer == Answer::Refused("busy".into())
    }

    pub(crate) fn told(&self, item: i64) -> AnsweredClaim {
        let key = Some(format!("key-{}", self.user));
        AnsweredClaim { user: self.user.clone(), item, key, answer: self.answer.clone() }
    }
}

pub(crate) struct Traffic {
    street: Arc<Street>,
    visitors: Vec<JoinHandle<()>>,
}

struct Street {
    name: String,
    item: i64,
    keys: sale::SigningKeys,
    /// The servers that are believed to run.
    addresses: Mutex<Vec<SocketAddr>>,
    /// Who has to come back.
    again: Mutex<VecDeque<String>>,
    newcomers: AtomicUsize,
    closing: AtomicBool,
    heard: Mutex<Vec<Heard>>,
    /// What the servers write.
    log: PathBuf,
}

impl Traffic {
    pub(crate) fn start(sale: &Sale, name: &str, visitors: usize) -> Traffic {
        let street = Arc::new(Street {
            name: name.into(),
            item: sale.item,
            keys: sale.deployment.keys(),
            addresses: Mutex::new(sale.addresses()),
            again: Mutex::default(),
            newcomers: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            heard: Mutex::default(),
            log: sale.deployment.log_file(),
        });
        let visitors = (0..visitors).map(|_| tokio::spawn(street.clone().visit())).collect();
        Traffic { street, visitors }
    }

    /// Who can be asked has changed.
    pub(crate) fn go_to(&self, addresses: Vec<SocketAddr>) {
        *self.street.addresses.lock().unwrap() = addresses;
    }

    /// Wait until somebody like that, who asked after `since`, is answered like that. Answers how
    /// long after `since` it was.
    pub(crate) async fn until(&self, since: Instant, like: impl Fn(&Heard) -> bool) -> Duration {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = 0;
        loop {
            {
                let heard = self.street.heard.lock().unwrap();
                let new = &heard[seen..];
                if let Some(found) = new.iter().find(|heard| heard.sent > since && like(heard)) {
                    return found.at - since;
                }
                seen = heard.len();
            }
            if Instant::now() >= deadline {
                panic!("nobody was answered like that\n{}", self.street.what_was_going_on());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub(crate) fn count(&self, like: impl Fn(&Heard) -> bool) -> usize {
        self.street.heard.lock().unwrap().iter().filter(|heard| like(heard)).count()
    }

    /// No newcomers any more; everybody gets an answer.
    pub(crate) async fn end(self) -> Vec<Heard> {
        self.street.closing.store(true, Ordering::SeqCst);
        for visitor in self.visitors {
            visitor.await.unwrap();
        }
        std::mem::take(&mut self.street.heard.lock().unwrap())
    }
}

impl Street {
    async fn visit(self: Arc<Self>) {
        let mut open: Option<(SocketAddr, Connection)> = None;
        let mut last_answer = Instant::now();
        while let Some(user) = self.next() {
            tokio::time::sleep(PAUSE).await;
            let heard = self.ask(user, &mut open).await;
            match &heard.answer {
                Answer::Unknown | Answer::Refused(_) => {
                    if last_answer.elapsed() >= PATIENCE {
                        panic!("still {heard:?}\n{}", self.what_was_going_on());
                    }
                    self.again.lock().unwrap().push_back(heard.user.clone());
                }
                _ => last_answer = Instant::now(),
            }
            self.heard.lock().unwrap().push(heard);
        }
    }

    /// For whoever has to find out why: the last answers, and the last lines of the servers.
    fn what_was_going_on(&self) -> String {
        let heard = self.heard.lock().unwrap();
        let answers: Vec<String> =
            heard.iter().rev().take(LAST_ANSWERS).map(|heard| format!("{heard:?}")).collect();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LAST_LINES)..];
        format!("{}\n{}", answers.join("\n"), tail.join("\n"))
    }

    /// Somebody who comes back or somebody new, with equal chances.
    fn next(&self) -> Option<String> {
        let closing = self.closing.load(Ordering::SeqCst);
        let mut again = self.again.lock().unwrap();
        if (closing || fastrand::bool())
            && let Some(user) = again.pop_front()
        {
            return Some(user);
        }
        let new = || format!("{}{}", self.name, self.newcomers.fetch_add(1, Ordering::SeqCst));
        (!closing).then(new)
    }

    async fn ask(&self, user: String, open: &mut Option<(SocketAddr, Connection)>) -> Heard {
        let addresses = self.addresses.lock().unwrap().clone();
        let address = match open {
            Some((address, _)) if addresses.contains(address) => *address,
            _ => addresses[fastrand::usize(..addresses.len())],
        };
        let sent = Instant::now();
        let response = self.send(address, &user, open).await;
        let answer = response.as_ref().map_or(Answer::Unknown, client::answer_of);
        let receipt = response.and_then(|r| r.json()["receipt"].as_str().map(str::to_owned));
        // Everybody is at every server now and then.
        if answer == Answer::Unknown || fastrand::u8(..) < 32 {
            *open = None;
        }
        Heard { user, address, sent, at: Instant::now(), answer, receipt }
    }

    async fn send(
        &self,
        address: SocketAddr,
        user: &str,
        open: &mut Option<(SocketAddr, Connection)>,
    ) -> Option<client::Response> {
        if open.as_ref().is_none_or(|(at, _)| *at != address) {
            *open = Some((address, Connection::open(address).await.ok()?));
        }
        let (_, connection) = open.as_mut()?;
        let id = UserId::new(user).unwrap();
        let expires_ms = now_ms() + 600_000;
        let token = SaleToken { user: id, item: ItemId(self.item), expires_ms, from_ms: None }
            .sign(&self.keys);
        let key = format!("key-{user}");
        let headers = [
            ("content-type", "application/json"),
            ("x-sale-token", token.as_str()),
            ("idempotency-key", key.as_str()),
        ];
        let path = format!("/api/v1/items/{}/claims", self.item);
        connection.send("POST", &path, &headers, br#"{"quantity":1}"#).await.ok()
    }
}
