//! Stand-ins for the companies that take money: WeChat Pay, Alipay, and a shop with a cashier of its own.
//!
//! Each is a server of its own on a loopback port, with keys that it makes at its start, in a folder of its
//! own. They were written from the companies' public documents, apart from `crates/payment`, so that the
//! two check each other: what a stand-in does not understand in a request it refuses as the company would,
//! and writes down ([`StandIn::complaints`]).
//!
//! **The life of a payment.** The shop opens a *trade*. The test lets its buyer [pay](StandIn::pay): a
//! *charge*, and *news* of it for the shop. The news become a notice, signed at the moment of each delivery,
//! which is posted until the shop takes it or its tries are over. The shop may ask, close, and give back.
//! [`StandIn::bill`] says what was really taken and given back; the stories end by comparing it.
//!
//! **What goes wrong** is in [`Faults`] (by dice with a seed) and in [`Mood`] (until it is changed). A fault
//! is of the wire or of the company's manners; its accounts are always right, as those of the real ones are
//! taken to be. Everything is bounded: trades, connections, notices under way, tries, and how long one hangs.

mod accounts;
mod alipay;
mod bills;
mod calendar;
mod faults;
mod http;
mod keys;
mod news;
mod shop;
mod wechat;

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    ops::Deref,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::{Semaphore, mpsc, watch},
    time::timeout,
};

use self::{
    accounts::{Accounts, Trade},
    faults::AnswerFate,
    http::{Answer, Request},
};
use crate::services::{Port, ServiceFolder};

pub use self::{
    accounts::{Charge, Paying, Settled, Stuck},
    alipay::Alipay,
    faults::{Faults, Forgery, Mood},
    keys::{Certified, KeyPair},
    news::{News, Notice},
    shop::Shop,
    wechat::WeChat,
};

const CONNECTIONS_MAX: usize = 1_000;
/// Nobody is kept waiting for longer, whatever the mood.
const HANG_MAX: Duration = Duration::from_secs(300);
/// News that wait for their notices.
const NEWS_MAX: usize = 200_000;
const COMPLAINTS_MAX: usize = 1_000;

/// A company's way to speak.
pub trait Protocol: Send + Sync + Sized + 'static {
    /// Numbers of its charges begin with this.
    const TXN_PREFIX: &'static str;

    fn make(folder: &Path, company: Company) -> io::Result<Self>;

    fn company(&self) -> &Company;

    /// Do what is asked, and answer as the company would.
    fn serve(&self, request: &Asked) -> Told;

    /// "Something is out of order here", in its words.
    fn out_of_order(&self, request: &Asked) -> Told;

    /// The same answer with a signature that is not its own.
    fn forged(&self, told: Told) -> Told;

    /// A notice of this news, signed now; none if the shop is not to be told.
    fn notice(&self, news: &News, forgery: Option<Forgery>) -> Option<Notice>;

    /// Did the shop take the notice?
    fn is_taken(&self, status: u16, body: &[u8]) -> bool;
}

/// What was asked; opaque outside.
pub struct Asked(Request);
/// What was answered; opaque outside.
pub struct Told(Answer);

/// What every company has, whatever it speaks.
pub struct Company {
    accounts: Mutex<Accounts>,
    faults: Mutex<Faults>,
    dice: Mutex<fastrand::Rng>,
    mood: watch::Sender<Mood>,
    complaints: Mutex<Vec<String>>,
    counts: Mutex<HashMap<&'static str, usize>>,
    news: mpsc::Sender<News>,
    address: SocketAddr,
}

impl Company {
    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        locked(&self.accounts)
    }

    fn roll<T>(&self, throw: impl FnOnce(&Faults, &mut fastrand::Rng) -> T) -> T {
        throw(&locked(&self.faults), &mut locked(&self.dice))
    }

    /// The shop said something that the documents do not allow.
    fn complain(&self, what: impl Into<String>) {
        let mut complaints = locked(&self.complaints);
        if complaints.len() < COMPLAINTS_MAX {
            complaints.push(what.into());
        }
    }

    fn count(&self, what: &'static str) {
        *locked(&self.counts).entry(what).or_default() += 1;
    }

    fn pay(&self, prefix: &str, order_no: &str, paying: Paying) -> Result<(), &'static str> {
        let charged = self.accounts().pay(prefix, order_no, paying, calendar::now_ms())?;
        for charge in charged {
            self.tell(News::Paid { charge, after_ms: 0, doubled: paying == Paying::Twice });
        }
        Ok(())
    }

    /// Of these the shop is to be told.
    fn tell(&self, news: News) {
        if self.news.try_send(news).is_err() {
            self.complain("more news than a story has");
        }
    }
}

/// A running company. It is gone when dropped.
pub struct StandIn<P: Protocol> {
    protocol: Arc<P>,
    runtime: Option<Runtime>,
    _port: Port,
    _folder: ServiceFolder,
}

impl<P: Protocol> StandIn<P> {
    /// One that does nothing wrong until it is told to.
    pub fn start(seed: u64) -> io::Result<StandIn<P>> {
        let (port, folder) = (Port::reserve()?, ServiceFolder::new("provider")?);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (news, told) = mpsc::channel(NEWS_MAX);
        let company = Company {
            accounts: Mutex::default(),
            faults: Mutex::default(),
            dice: Mutex::new(fastrand::Rng::with_seed(seed)),
            mood: watch::Sender::new(Mood::Works),
            complaints: Mutex::default(),
            counts: Mutex::default(),
            news,
            address: port.address(),
        };
        let protocol = Arc::new(P::make(folder.path(), company)?);
        let listener = std::net::TcpListener::bind(port.address())?;
        listener.set_nonblocking(true)?;
        let entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        drop(entered);
        runtime.spawn(accept(protocol.clone(), listener));
        runtime.spawn(news::tell_all(protocol.clone(), told));
        Ok(StandIn { protocol, runtime: Some(runtime), _port: port, _folder: folder })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.company().address)
    }

    pub fn set_faults(&self, faults: Faults) {
        *locked(&self.company().faults) = faults;
    }

    pub fn set_mood(&self, mood: Mood) {
        self.company().mood.send_replace(mood);
    }

    /// A buyer pays what the shop opened.
    pub fn pay(&self, order_no: &str, paying: Paying) -> Result<(), &'static str> {
        self.company().pay(P::TXN_PREFIX, order_no, paying)
    }

    /// As if the shop had opened a payment.
    pub fn agree(&self, order_no: &str, amount: i64, notify_url: &str) {
        self.company().accounts().open(agreed(order_no, amount, notify_url));
    }

    /// Has the shop opened a payment for it?
    pub fn knows(&self, order_no: &str) -> bool {
        self.company().accounts().trade(order_no).is_some()
    }

    /// Everything that was charged up to now, and what of it went back.
    pub fn bill(&self) -> Vec<Settled> {
        self.company().accounts().bill(calendar::now_ms())
    }

    /// Charges that will land later.
    pub fn under_way(&self) -> usize {
        self.company().accounts().under_way(calendar::now_ms())
    }

    /// A charge as if it had been made then; for bills of days that are over.
    pub fn backdate(&self, txn: &str, at_ms: i64) {
        self.company().accounts().backdate(txn, at_ms);
    }

    /// What the shop said or did against the documents.
    pub fn complaints(&self) -> Vec<String> {
        locked(&self.company().complaints).clone()
    }

    /// How often something happened, by its name, e.g. `notices_lost`.
    pub fn counts(&self) -> HashMap<&'static str, usize> {
        locked(&self.company().counts).clone()
    }

    /// Money goes back by another hand than the shop's server, such as a clerk's at the company's own pages.
    pub fn give_back(&self, order_no: &str, amount: i64) -> Result<(), &'static str> {
        let (company, now_ms) = (self.company(), calendar::now_ms());
        let number = format!("HAND{order_no}");
        let mut accounts = company.accounts();
        let charge = accounts.charge_of(order_no, now_ms);
        let refund = (number.as_str(), amount);
        let made = accounts.refund(P::TXN_PREFIX, charge, refund, (now_ms, now_ms));
        drop(accounts);
        made.map_err(|_| "there is no such money")?;
        company.tell(News::Refunded { number, after_ms: 0 });
        Ok(())
    }

    /// A notice as it would be sent now, of the first refund of an order.
    pub fn refund_notice_of(&self, order_no: &str, forgery: Option<Forgery>) -> Option<Notice> {
        let number = self.company().accounts().refund_of(order_no)?.to_owned();
        self.protocol.notice(&News::Refunded { number, after_ms: 0 }, forgery)
    }

    /// A notice as it would be sent now, of the first charge of an order, for whoever wants to send it
    /// with changes of their own.
    pub fn notice_of(&self, order_no: &str, forgery: Option<Forgery>) -> Option<Notice> {
        let charge = self.company().accounts().charge_of(order_no, calendar::now_ms())?;
        self.protocol.notice(&News::Paid { charge, after_ms: 0, doubled: false }, forgery)
    }
}

impl<P: Protocol> Deref for StandIn<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.protocol
    }
}

impl<P: Protocol> Drop for StandIn<P> {
    fn drop(&mut self) {
        // Not waited for: the test that drops it may be a task itself.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept<P: Protocol>(protocol: Arc<P>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok((stream, _)) = listener.accept().await {
        if *protocol.company().mood.borrow() == Mood::Down {
            continue;
        }
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let protocol = protocol.clone();
        tokio::spawn(async move {
            converse(protocol, stream).await;
            drop(permit);
        });
    }
}

/// One connection, request after request, until somebody ends it.
async fn converse<P: Protocol>(protocol: Arc<P>, mut stream: TcpStream) {
    let company = protocol.company();
    let mut mood = company.mood.subscribe();
    let mut buffer = Vec::new();
    loop {
        let request = tokio::select! {
            request = http::read(&mut stream, &mut buffer) => request,
            _ = mood.wait_for(|mood| *mood == Mood::Down) => return,
        };
        let Some(request) = request else { return };
        let (bytes, goes_on) = match answer(&*protocol, Asked(request), &mut mood).await {
            Some(answer) => answer,
            None => return,
        };
        if stream.write_all(&bytes).await.is_err() || !goes_on {
            return;
        }
    }
}

/// The bytes of the answer, and whether the connection lives on; `None` if it is cut without one.
async fn answer<P: Protocol>(
    protocol: &P,
    asked: Asked,
    mood: &mut watch::Receiver<Mood>,
) -> Option<(Vec<u8>, bool)> {
    let company = protocol.company();
    let is_now = *mood.borrow();
    match is_now {
        Mood::Works => {}
        Mood::Down => return None,
        Mood::Hangs => {
            company.count("hung");
            let _ = timeout(HANG_MAX, mood.wait_for(|mood| *mood != Mood::Hangs)).await;
            return None;
        }
        Mood::Errs => return Some((protocol.out_of_order(&asked).0.bytes(), true)),
        Mood::Babbles => return Some((nonsense().bytes(), true)),
    }
    let (fate, after) = company.roll(|f, dice| (f.answer_fate(dice), f.answer_after(dice)));
    tokio::time::sleep(after).await;
    let told = match fate {
        AnswerFate::Erred => {
            company.count("errors");
            return Some((protocol.out_of_order(&asked).0.bytes(), true));
        }
        AnswerFate::Nonsense => {
            company.count("nonsense");
            return Some((nonsense().bytes(), true));
        }
        _ => protocol.serve(&asked),
    };
    let bytes = told.0.bytes();
    Some(match fate {
        AnswerFate::ErredAfterWork => {
            company.count("errors_after_work");
            (protocol.out_of_order(&asked).0.bytes(), true)
        }
        AnswerFate::Lost => {
            company.count("answers_lost");
            return None;
        }
        AnswerFate::Halved => {
            company.count("answers_halved");
            (bytes[..bytes.len() / 2].to_vec(), false)
        }
        AnswerFate::Forged => {
            company.count("answers_forged");
            (protocol.forged(told).0.bytes(), true)
        }
        _ => (bytes, true),
    })
}

/// What a gateway on the way says when it has lost its own.
fn nonsense() -> Answer {
    Answer::new(200, "text/html", "<html><body>Welcome to the default page</body></html>")
}

/// A trade without an end, at which a buyer looks.
fn agreed(order_no: &str, amount: i64, notify_url: &str) -> Trade {
    Trade {
        order_no: order_no.into(),
        amount,
        notify_url: notify_url.into(),
        visited: true,
        made_ms: calendar::now_ms(),
        ..Trade::default()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
