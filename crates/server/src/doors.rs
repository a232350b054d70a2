//! Where a process is reached, and who is served at which door.
//!
//! | door | whom for | TLS |
//! |---|---|---|
//! | `listen` | buyers, and without `http.admin_listen` everybody | if there is a certificate |
//! | `http.admin_listen` | operators, monitors, balancers; then they are served nowhere else | the same |
//! | `http.redirect_listen` | browsers that ask without TLS; they are sent to `listen` | never |
//! | a port of the loopback | commands on this machine, where `listen` speaks TLS | never |
//!
//! `/healthz` is at all that serve anything. The names of `http.allowed_hosts` are asked for at the first
//! door alone: monitors and balancers come by address, and bring no pages of strangers with them. Nor are
//! there proxies before the other doors, so that an address is the socket's and not what a header says.
//!
//! The last door is there because a command knows this machine and not the name in the certificate. It is
//! found in a file that only the owner of the data directory can read, and asks for the same tokens.

use std::{
    convert::Infallible,
    future::Future,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, Method, StatusCode,
    header::{HOST, LOCATION},
};
use listener::{
    Drained, FastPath, FastRequest, Fields, Hosts, HttpSettings, Look, Pending, Refusal, RequestId,
    Tls,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};
use tower::Service;

use crate::{
    api::{self, App},
    edge::Edge,
    greeting::reached_at,
    metrics::TLS_CERTIFICATE_BAD,
    problem::{Code, Problem},
    serve::CannotStart,
};
use config::Config;

/// Operators, machines and commands are few.
const INNER_CONNECTIONS_MAX: usize = 256;
/// Who is sent on stays for one answer.
const REDIRECT_CONNECTIONS_MAX: usize = 1_024;
/// How often the files of the certificate are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// All doors of a process, open and not yet served.
pub(crate) struct Doors {
    public: TcpListener,
    admin: Option<TcpListener>,
    redirect: Option<TcpListener>,
    commands: Option<TcpListener>,
    tls: Option<Arc<Tls>>,
    settings: HttpSettings,
}

impl Doors {
    /// There can be no more than this.
    pub(crate) fn cap_connections(&mut self, possible: usize) {
        self.settings.connections_max = self.settings.connections_max.min(possible);
    }

    pub(crate) fn open(config: &Config) -> Result<Doors, CannotStart> {
        let http = &config.http;
        let tls = if http.has_tls() {
            let tls = Tls::open(&http.tls_cert_file, &http.tls_key_file);
            Some(Arc::new(tls.map_err(CannotStart::because)?))
        } else {
            None
        };
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Doors {
            public: bind("--listen", config.listen, http)?,
            admin: maybe_bind("http.admin_listen", http.admin_listen, http)?,
            redirect: maybe_bind("http.redirect_listen", http.redirect_listen, http)?,
            commands: maybe_bind("a port for commands", tls.is_some().then_some(here), http)?,
            tls,
            settings: http.clone(),
        })
    }

    /// Where buyers come.
    pub(crate) fn public_address(&self) -> Result<SocketAddr, CannotStart> {
        self.public.local_addr().map_err(CannotStart::because)
    }

    /// Where operators come, if not where buyers do.
    pub(crate) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().and_then(|admin| admin.local_addr().ok())
    }

    /// Where commands on this machine ask, without TLS.
    pub(crate) fn commands_address(&self) -> Result<SocketAddr, CannotStart> {
        let door = self.commands.as_ref().or(self.admin.as_ref()).unwrap_or(&self.public);
        let address = door.local_addr().map_err(CannotStart::because)?;
        // A server that listens everywhere is reached from here by the loopback.
        Ok(if address.ip().is_unspecified() {
            SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()))
        } else {
            address
        })
    }

    /// The console, as a browser on this machine finds it. Buyers come at `public`.
    pub(crate) fn console_url(&self, public: SocketAddr) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (host, _) = reached_at(self.admin_address().unwrap_or(public));
        format!("{scheme}://{host}/console")
    }

    /// The same queues of connections; whoever has the doors afterwards goes on with them.
    pub(crate) fn another_handle(&self) -> std::io::Result<Doors> {
        let maybe = |door: &Option<TcpListener>| door.as_ref().map(handle).transpose();
        Ok(Doors {
            public: handle(&self.public)?,
            admin: maybe(&self.admin)?,
            redirect: maybe(&self.redirect)?,
            commands: None,
            tls: self.tls.clone(),
            settings: self.settings.clone(),
        })
    }

    /// Follow the files of the certificate for as long as the process runs.
    pub(crate) fn follow_certificate(&self) -> impl Future<Output = ()> + Send + 'static {
        let tls = self.tls.clone();
        async move {
            if let Some(tls) = tls {
                follow(tls).await;
            }
        }
    }

    /// Serve an app at all doors until `shutdown` resolves, then drain.
    pub(crate) async fn serve_app(
        self,
        app: Arc<App>,
        shutdown: impl Future<Output = ()>,
    ) -> Drained {
        let divided = self.admin.is_some();
        let public = if divided { api::public_service } else { api::service };
        let fast_path = api::fast_path(app.clone());
        self.serve(fast_path, public(app.clone()), api::admin_service(app), shutdown).await
    }

    /// Serve these at the doors that they are for.
    pub(crate) async fn serve<P, A>(
        self,
        fast_path: Arc<dyn FastPath>,
        public: Edge<P>,
        admin: Edge<A>,
        shutdown: impl Future<Output = ()>,
    ) -> Drained
    where
        P: Service<Request, Response = Response, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        P::Future: Send,
        A: Service<Request, Response = Response, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        A::Future: Send,
    {
        let Doors {
            public: door,
            admin: admins_door,
            redirect: redirect_door,
            commands,
            tls,
            settings,
        } = self;
        let hosts = Hosts::new(&settings.allowed_hosts);
        let public = public.known_as(hosts.clone()).with_tls(tls.is_some());
        let inner = HttpSettings {
            connections_max: settings.connections_max.min(INNER_CONNECTIONS_MAX),
            allowed_hosts: Vec::new(),
            // Nobody vouches for anybody there: who comes is who they are.
            proxy_hops: 0,
            ..settings.clone()
        };
        let sending_on = HttpSettings {
            connections_max: settings.connections_max.min(REDIRECT_CONNECTIONS_MAX),
            ..settings.clone()
        };
        let https_port = door.local_addr().map_or(443, |address| address.port());
        let redirect = redirect(https_port, &settings).known_as(hosts);
        let (stop, stopped) = watch::channel(false);
        let until = || {
            let mut stopped = stopped.clone();
            async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }
        };
        let told = async {
            shutdown.await;
            let _ = stop.send(true);
        };
        let of_admins = admin.clone().with_tls(tls.is_some());
        let (drained, ..) = tokio::join!(
            listener::serve(door, tls.clone(), fast_path, public, settings, until()),
            maybe_serve(admins_door, tls, of_admins, inner.clone(), until()),
            maybe_serve(commands, None, admin, inner, until()),
            maybe_serve(redirect_door, None, redirect, sending_on, until()),
            told,
        );
        drained
    }
}

async fn maybe_serve<S>(
    door: Option<TcpListener>,
    tls: Option<Arc<Tls>>,
    service: S,
    settings: HttpSettings,
    shutdown: impl Future<Output = ()>,
) where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    if let Some(door) = door {
        listener::serve(door, tls, Arc::new(NothingFast), service, settings, shutdown).await;
    }
}

/// Like `TcpListener::bind`, with a queue for the crowd that knocks before it is let in.
fn bind(name: &str, listen: SocketAddr, http: &HttpSettings) -> Result<TcpListener, CannotStart> {
    let bound = (|| {
        let socket = if listen.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        socket.listen(http.backlog_max)
    })();
    bound.map_err(|error| cannot_listen(name, listen, &error))
}

fn maybe_bind(
    name: &str,
    listen: Option<SocketAddr>,
    http: &HttpSettings,
) -> Result<Option<TcpListener>, CannotStart> {
    listen.map(|listen| bind(name, listen, http)).transpose()
}

/// Names the cause, and another port if that is all it takes.
fn cannot_listen(name: &str, listen: SocketAddr, error: &std::io::Error) -> CannotStart {
    if error.kind() != std::io::ErrorKind::AddrInUse {
        return CannotStart::because(format!("cannot listen on {listen}: {error}"));
    }
    let port = listen.port();
    let advice = free_address(listen)
        .map_or_else(String::new, |free| format!("; {} is free: {name} {free}", free.port()));
    CannotStart::because(format!(
        "cannot listen on {listen}: another program has port {port}{advice}"
    ))
}

/// The next port that can really be had, or any other.
fn free_address(taken: SocketAddr) -> Option<SocketAddr> {
    const TRIED: u16 = 100;
    let next = (1..=TRIED).filter_map(|n| taken.port().checked_add(n));
    next.chain([0]).find_map(|port| {
        let tried = std::net::TcpListener::bind(SocketAddr::new(taken.ip(), port));
        tried.and_then(|listener| listener.local_addr()).ok()
    })
}

fn handle(door: &TcpListener) -> std::io::Result<TcpListener> {
    use std::os::fd::AsFd;
    TcpListener::from_std(std::net::TcpListener::from(door.as_fd().try_clone_to_owned()?))
}

async fn follow(tls: Arc<Tls>) {
    let mut bad = false;
    loop {
        metrics::gauge!(TLS_CERTIFICATE_BAD).set(if bad { 1.0 } else { 0.0 });
        tokio::time::sleep(LOOK_EVERY).await;
        let looking = tls.clone();
        // Reads files, so not on an async thread.
        match tokio::task::spawn_blocking(move || looking.look()).await {
            Ok(Look::Renewed) => {
                bad = false;
                tracing::info!("there is a new certificate: whoever connects from now on sees it");
            }
            Ok(Look::Same) => bad = false,
            Ok(Look::Bad(error)) => {
                if !bad {
                    tracing::error!(%error, "the new certificate cannot be used, the old one stays");
                }
                bad = true;
            }
            Ok(Look::Doubtful) | Err(_) => {}
        }
    }
}

/// Sends browsers to the door with TLS. Whoever asks for more than a page has sent it in the clear already,
/// and is told so rather than made to send it twice.
fn redirect(https_port: u16, settings: &HttpSettings) -> Edge<Router> {
    let router =
        Router::new().fallback(async move |request: Request| send_on(&request, https_port));
    Edge::new(router, Duration::from_millis(settings.request_timeout_ms))
}

fn send_on(request: &Request, https_port: u16) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let location = host.filter(|host| reads && !host.is_empty()).and_then(|host| {
        HeaderValue::try_from(format!("https://{}{path}", with_port(host, https_port))).ok()
    });
    match location {
        Some(location) => (StatusCode::PERMANENT_REDIRECT, [(LOCATION, location)]).into_response(),
        None => Problem::new(Code::BadRequest)
            .detail("Only https is spoken here.", "仅支持 https。")
            .into_response(),
    }
}

/// Who came without a port came by the usual one, and finds TLS by the usual one as well, whatever the ports
/// are called in here.
fn with_port(host: &str, https_port: u16) -> String {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && https_port != 443 => {
            format!("{name}:{https_port}")
        }
        Some((name, port)) if !port.contains(']') => name.to_owned(),
        _ => host.to_owned(),
    }
}

/// Everything is the router's.
pub(crate) struct NothingFast;

impl FastPath for NothingFast {
    fn target(&self, _method: &str, _path: &str) -> Option<i64> {
        None
    }

    fn begin(
        &self,
        _target: i64,
        _request: &FastRequest<'_>,
        _out: &mut Vec<u8>,
    ) -> Option<Box<dyn Pending>> {
        None
    }

    fn write_refusal(
        &self,
        refusal: Refusal,
        id: RequestId,
        fields: Fields<'_>,
        out: &mut Vec<u8>,
    ) {
        api::write_refusal(refusal, id, fields, out);
    }

    fn write_full(&self, out: &mut Vec<u8>) {
        api::write_full(out);
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn browsers_are_sent_to_the_door_with_tls() {
        let ask = |method: &str, host: &str, port| {
            let request = Request::builder().method(method).uri("/a?b=c").header(HOST, host);
            let answer = send_on(&request.body(Body::empty()).unwrap(), port);
            let location = answer.headers().get(LOCATION).map(|to| to.to_str().unwrap().to_owned());
            (answer.status().as_u16(), location.unwrap_or_default())
        };
        for (host, port, to) in [
            ("shop.example", 443, "https://shop.example/a?b=c"),
            ("shop.example", 8443, "https://shop.example/a?b=c"),
            ("shop.example:8080", 8443, "https://shop.example:8443/a?b=c"),
            ("shop.example:8080", 443, "https://shop.example/a?b=c"),
            ("[::1]", 8443, "https://[::1]/a?b=c"),
            ("[::1]:80", 8443, "https://[::1]:8443/a?b=c"),
        ] {
            assert_eq!(ask("GET", host, port), (308, to.into()), "{host} {port}");
        }
        assert_eq!(ask("POST", "shop.example", 443).0, 400);
        assert_eq!(ask("GET", "", 443).0, 400);
    }
}
