//! nginx with the site of `deploy/`, in front of web instances under test.
//!
//! The site is taken as it is, except for what belongs to a machine: ports, certificate, cache folder
//! and the list of instances. Each of these is replaced by its text, and it is an error if the text is
//! not there, so that a changed site cannot go untested without notice.

use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    NotYet, START_WITHIN,
    keeper::Keeper,
    place::{Port, ServiceFolder},
    programs, wait_for,
};

const SITE: &str = include_str!("../../../../deploy/nginx/seckill.conf");
const TLS_FOLDER: &str = "/etc/seckill/tls";
/// While there is such a file, nginx answers claims itself.
const SWITCH: &str = "/etc/nginx/seckill-sale-is-over";
const CACHE_FOLDER: &str = "/var/cache/nginx/seckill";

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    /// Comes first because it is dropped first: a process that lives would miss its folder.
    _keeper: Keeper,
    program: PathBuf,
    folder: ServiceFolder,
    http: Port,
    https: Port,
}

impl Nginx {
    /// In front of these web instances.
    pub fn start(instances: &[SocketAddr]) -> io::Result<Nginx> {
        let program = programs::find("nginx", "nginx")?;
        let folder = ServiceFolder::new("nginx")?;
        let (http, https) = (Port::reserve()?, Port::reserve()?);
        make_certificate(folder.path())?;
        fs::create_dir(folder.data())?;
        let site = site(folder.path(), instances, &http, &https)?;
        fs::write(folder.path().join("site.conf"), site)?;
        fs::write(folder.path().join("nginx.conf"), around(folder.path()))?;
        let mut keeper = Keeper::start(&program, &args(folder.path()), &folder.log())?;
        wait_for("the start of nginx", START_WITHIN, || {
            keeper.still_runs().map_err(NotYet::Never)?;
            TcpStream::connect(https.address())?;
            Ok(())
        })?;
        Ok(Nginx { _keeper: keeper, program, folder, http, https })
    }

    /// What `nginx -t` says about the configuration in use.
    pub fn check(&self) -> io::Result<Output> {
        Command::new(&self.program).arg("-t").args(args(self.folder.path())).output()
    }

    /// Where it listens with TLS.
    pub fn address(&self) -> SocketAddr {
        self.https.address()
    }

    /// Where it listens without, to send everybody away.
    pub fn plain_address(&self) -> SocketAddr {
        self.http.address()
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.https.number())
    }

    /// The certificate for `localhost` that a client must trust.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("fullchain.pem")
    }

    /// Say that the sale is over, or that it is not.
    pub fn end_the_sale(&self, over: bool) -> io::Result<()> {
        let switch = switch(self.folder.path());
        if over { fs::write(switch, "") } else { fs::remove_file(switch) }
    }

    /// What it wrote into its error log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.log()).unwrap_or_default()
    }
}

fn switch(folder: &Path) -> PathBuf {
    folder.join("seckill-sale-is-over")
}

fn args(folder: &Path) -> Vec<String> {
    let folder = folder.display();
    vec!["-p".into(), format!("{folder}/"), "-c".into(), format!("{folder}/nginx.conf")]
}

fn site(folder: &Path, instances: &[SocketAddr], http: &Port, https: &Port) -> io::Result<String> {
    let servers: String = instances
        .iter()
        .map(|instance| format!("server {instance} max_fails=3 fail_timeout=2s;\n    "))
        .collect();
    let replaced = [
        ("server 127.0.0.1:8080 max_fails=3 fail_timeout=2s;", servers),
        ("listen 80 ", format!("listen {} ", http.address())),
        ("listen 443 ", format!("listen {} ", https.address())),
        (SWITCH, switch(folder).display().to_string()),
        (TLS_FOLDER, folder.display().to_string()),
        (CACHE_FOLDER, folder.join("data").display().to_string()),
    ];
    replaced.iter().try_fold(SITE.to_owned(), |site, (from, to)| {
        if site.contains(from) {
            return Ok(site.replace(from, to));
        }
        Err(io::Error::other(format!("deploy/nginx/seckill.conf has no `{from}` any more")))
    })
}

/// The part that the distribution's nginx.conf plays. One process and no master: a worker would
/// outlive a master that is killed.
fn around(folder: &Path) -> String {
    let data = folder.join("data");
    let data = data.display();
    format!(
        "daemon off;\nmaster_process off;\npid {data}/pid;\nerror_log stderr info;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  client_body_temp_path {data}/body;\n  \
         proxy_temp_path {data}/proxy;\n  fastcgi_temp_path {data}/fastcgi;\n  \
         uwsgi_temp_path {data}/uwsgi;\n  scgi_temp_path {data}/scgi;\n  \
         include {}/site.conf;\n}}\n",
        folder.display()
    )
}

fn make_certificate(folder: &Path) -> io::Result<()> {
    let output = Command::new(programs::find("openssl", "openssl")?)
        .args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        // Not an authority: strict clients take none for a server.
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(folder.join("privkey.pem"))
        .arg("-out")
        .arg(folder.join("fullchain.pem"))
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}
