//! Push through a real nginx with the site of `deploy/`, in front of two instances, over TLS: events come
//! when they happen, a socket that its instance loses comes back at the other, and nobody misses anything.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use client::{Api, NewSale};
use faults::services::Nginx;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::json;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;

use crate::fixtures::{
    Buyer, Deployment, Events, Frame, PATIENCE, Profile, Sale, WEBS, WebSocket, blocking,
    listening, until,
};

const AGAIN: Duration = Duration::from_millis(100);

/// What a client without TLS speaks to: everything goes to nginx, and back, as it is.
async fn tunnel_to(nginx: &Nginx) -> SocketAddr {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(nginx.certificate()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (tls, nginx) = (TlsConnector::from(Arc::new(config)), nginx.address());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                let stream = TcpStream::connect(nginx).await.unwrap();
                let name = ServerName::try_from("localhost").unwrap();
                let mut server = tls.connect(name, stream).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

/// Somebody with a page open: whenever the socket ends it is opened again, with the last event's id.
struct Listener<'s> {
    deployment: &'s Deployment,
    door: SocketAddr,
    user: &'s str,
    socket: WebSocket,
    came_back: usize,
}

impl<'s> Listener<'s> {
    async fn open(deployment: &'s Deployment, door: SocketAddr, user: &'s str) -> Listener<'s> {
        let socket = WebSocket::open(door, &listening(deployment, user, "")).await;
        Listener { deployment, door, user, socket, came_back: 0 }
    }

    async fn comes_back(&mut self) {
        let last = self.socket.last_id.clone();
        let more = last.as_ref().map(|id| format!("&last_event_id={id}")).unwrap_or_default();
        self.socket = loop {
            let query = listening(self.deployment, self.user, &more);
            match WebSocket::try_open(self.door, &query, "").await {
                Ok(Ok(socket)) => break socket,
                _ => tokio::time::sleep(AGAIN).await,
            }
        };
        self.socket.last_id = last;
        self.came_back += 1;
    }

    /// Until it hears of this order in this status.
    async fn hears(&mut self, no: &str, status: &str) {
        let hears = async {
            loop {
                match self.socket.frame().await {
                    Frame::Event(event) => {
                        let order = &event["data"];
                        if order["order_no"] == no && order["status"] == status {
                            return;
                        }
                    }
                    Frame::Ping => self.socket.pong().await,
                    Frame::Close(_) => {}
                    Frame::End => self.comes_back().await,
                }
            }
        };
        let heard = tokio::time::timeout(PATIENCE, hears).await;
        assert!(heard.is_ok(), "{} never heard that {no} is {status}", self.user);
    }
}

/// Somebody who comes in through nginx.
async fn buyer_at(sale: &Sale, door: SocketAddr, user: &str) -> Buyer {
    let buyer = sale.buyer(user).await;
    let jwt = sale.deployment.login().token(&mut Api::new(door, None), user).await.unwrap();
    Buyer { api: Api::new(door, Some(&jwt)), ..buyer }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_through_nginx_as_they_happen_and_outlive_an_instance() {
    let deployment = Deployment::new(Profile::Cluster)
        .env("SECKILL_HTTP_PROXY_HOPS", 1)
        .env("SECKILL_PUSH_HEARTBEAT_MS", 1_000);
    let login = deployment.login();
    let mut sale = deployment.open_sale(NewSale::of(5)).await;
    // Tickets are signed with the secret of all stories; processes of the sale itself are killed meanwhile.
    let same = Deployment::new(Profile::Solo);
    let instances = sale.addresses();
    let nginx = blocking(move || Nginx::start(&instances)).await;
    let door = tunnel_to(&nginx).await;

    // nginx gives each new one to the instance that has fewer.
    let users = ["ann", "bob", "cat", "dan"];
    let mut listeners = Vec::new();
    for user in users {
        listeners.push(Listener::open(&same, door, user).await);
    }
    let mut events = Events::open(door, &login, "ann").await;
    // One that a page of another origin opens is refused, and the server's own page is known by its host.
    let query = listening(&same, "ann", "");
    for (origin, refused) in
        [("https://evil.example".to_owned(), true), (format!("https://{door}"), false)]
    {
        let headers = format!("origin: {origin}\r\n");
        let opened = WebSocket::try_open(door, &query, &headers).await.unwrap();
        assert_eq!(opened.err().map(|(status, _)| status), refused.then_some(403), "{origin}");
    }

    let mut orders = Vec::new();
    for (user, listener) in users.into_iter().zip(&mut listeners) {
        let mut buyer = buyer_at(&sale, door, user).await;
        let no = buyer.buy().await;
        listener.hears(&no, "unpaid").await;
        orders.push((buyer, no));
    }
    events.hear_of(&orders[0].1, "unpaid").await;

    // One instance dies. What happens before its buyers are back is not missed.
    let before: usize = listeners.iter().map(|listener| listener.came_back).sum();
    sale.kill_one(WEBS[0]);
    for (buyer, no) in &mut orders {
        let path = format!("/api/v1/orders/{no}/cancel");
        // nginx may try the dead one first, and says that the outcome is unknown; then it is asked again.
        let asked =
            async || buyer.api.post(&path, &json!({})).await.map_or(0, |answer| answer.status);
        until("it is cancelled", asked, |status| matches!(*status, 200 | 409)).await;
    }
    for ((_, no), listener) in orders.iter().zip(&mut listeners) {
        listener.hears(no, "closed").await;
    }
    let came_back: usize = listeners.iter().map(|listener| listener.came_back).sum();
    println!("{} of {} sockets came back", came_back - before, users.len());
    assert!(came_back > before, "one of them was at the one that died");

    // Signs of life are not held back: nginx would cut a silent stream after a minute. At last the other one
    // stops, and says goodbye through nginx.
    let mut last = WebSocket::open(door, &query).await;
    let sign = async { while last.frame().await != Frame::Ping {} };
    tokio::time::timeout(PATIENCE, sign).await.expect("no sign of life");
    last.pong().await;
    sale.stop_one(WEBS[1]).await;
    assert_eq!(last.farewell().await, Some(1001));
    for place in WEBS {
        sale.start_again(place).await;
    }
    sale.must_hold().await;
    let log = nginx.log();
    assert!(!log.contains("[emerg]") && !log.contains("[alert]"), "{log}");
}
