//! Makes what browsers are sent from the folder `web`, and the table of it that `src/lib.rs` reads.
//!
//! Nobody needs more than cargo for it, and whoever changes a file of `web` sees it after the next `cargo
//! run`. What the pages name is made first and named after what is in it; so the name of a picture is part
//! of the script that names it, and the name of that script part of the page.

#[path = "src/join.rs"]
mod join;
#[path = "src/page.rs"]
mod page;
#[path = "src/squeeze.rs"]
mod squeeze;
#[path = "src/swagger.rs"]
mod swagger;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use join::Files;
use page::Role;
use sha2::{Digest, Sha256};

const WEB: &str = "../../web";
/// What the API promises; tests hold it together with the routes.
const DOCUMENT: &str = "../../docs/openapi.json";
/// Served beside what pages name, because items of shops name it.
const ART: &str = "art/";
/// Scripts that no page of ours names.
const SCRIPTS_OF_OTHERS: [&str; 2] = ["embed/button.js", "embed/solver.js"];
/// Asked for by browsers without being told to.
const FAVICON: &str = "favicon.ico";
/// Scripts that others made come as they are.
const VENDOR: &str = "vendor/";
/// The name of that in what is made.
const DOCUMENT_NAME: &str = "openapi.json";
/// Large, and packed already: what is here is in the binary once, and sent so to everybody.
const PACKED: &str = "swagger/";

/// What is served, by the end of its name: its media type, and whether packing makes it smaller.
const KINDS: &[(&str, &str, bool)] = &[
    ("html", "text/html; charset=utf-8", true),
    ("js", "text/javascript; charset=utf-8", true),
    ("css", "text/css; charset=utf-8", true),
    ("svg", "image/svg+xml", true),
    ("json", "application/json", true),
    ("png", "image/png", false),
    ("jpg", "image/jpeg", false),
    ("webp", "image/webp", false),
    ("ico", "image/x-icon", false),
    ("woff2", "font/woff2", false),
];
/// What is larger is in the binary only as browsers ask for it.
const UNPACKED_BYTES_MAX: usize = 16 * 1_024;
const HASH_CHARS: usize = 16;
const BROTLI_QUALITY: u32 = 11;
const BROTLI_WINDOW_BITS: u32 = 22;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed={WEB}");
    println!("cargo::rerun-if-changed={DOCUMENT}");
    let mut files = Files::new();
    read(Path::new(WEB), "", &mut files)?;
    files.extend(swagger::files().map(|(path, bytes)| (path.to_owned(), bytes)));
    files.insert(DOCUMENT_NAME.to_owned(), fs::read(DOCUMENT)?);
    let mut making = Making { files: &files, made: BTreeMap::new() };
    for path in files.keys() {
        if path.ends_with(".html") {
            making.page(path)?;
        } else if path.starts_with(ART)
            || [FAVICON, DOCUMENT_NAME].contains(&&**path)
            || SCRIPTS_OF_OTHERS.contains(&&**path)
        {
            making.asset(path)?;
        }
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("files.rs"), table(&out, &making.made)?)?;
    Ok(())
}

/// All files of the folder but those that test it.
fn read(folder: &Path, name: &str, files: &mut Files) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{name}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            if path != "tests" && path != "node_modules" {
                read(&entry.path(), &format!("{path}/"), files)?;
            }
        } else {
            files.insert(path, fs::read(entry.path())?);
        }
    }
    Ok(())
}

struct Made {
    name: String,
    hash: String,
    bytes: Vec<u8>,
}

struct Making<'f> {
    files: &'f Files,
    made: BTreeMap<String, Made>,
}

impl Making<'_> {
    fn text(&self, path: &str) -> Result<String> {
        let file = self.files.get(path).ok_or_else(|| format!("web/{path} is not there"))?;
        Ok(String::from_utf8(file.clone()).map_err(|_| format!("web/{path} is no UTF-8"))?)
    }

    /// Makes what is at this path, with all that it names. Answers its name.
    fn asset(&mut self, path: &str) -> Result<String> {
        if let Some(made) = self.made.get(path) {
            return Ok(made.name.clone());
        }
        let end = path.rsplit('.').next().unwrap_or_default();
        let bytes = match end {
            _ if path.starts_with(VENDOR) || path.starts_with(PACKED) => self.files[path].clone(),
            "js" => {
                let statements = self.with_names(&join::joined(self.files, path)?)?;
                format!("(()=>{{{}}})();\n", squeeze::squeezed(&statements)).into_bytes()
            }
            "css" => {
                let sheet = page::dense_sheet(&self.text(path)?);
                self.with_names(&sheet)?.into_bytes()
            }
            "svg" => page::trimmed(&self.text(path)?).into_bytes(),
            _ => self.files.get(path).ok_or_else(|| format!("web/{path} is not there"))?.clone(),
        };
        Ok(self.keep(path, bytes))
    }

    fn page(&mut self, path: &str) -> Result<()> {
        let mut html = page::trimmed(&self.text(path)?);
        let mentions = page::mentions(&html);
        let sheets = mentions.iter().filter(|found| found.role == Role::Sheet);
        let sheets: Vec<_> = sheets.collect();
        if let [others @ .., last] = &sheets[..] {
            for other in others {
                html = html.replace(&format!("{}\n", other.tag), "");
            }
            self.sheet(&last.path, &sheets.iter().map(|sheet| &*sheet.path).collect::<Vec<_>>())?;
        }
        for mention in &mentions {
            if mention.role != Role::Sheet && self.files.contains_key(&mention.path) {
                self.asset(&mention.path)?;
            } else if !self.files.contains_key(&mention.path) {
                return Err(
                    format!("web/{path} names web/{}, which is not there", mention.path).into()
                );
            }
        }
        let html = self.with_names(&html)?;
        self.keep(path, html.into_bytes());
        Ok(())
    }

    /// The sheets of a page as one, which has the name of the last. Sheets of two pages that end alike begin
    /// alike.
    fn sheet(&mut self, path: &str, all: &[&str]) -> Result<()> {
        let mut text = String::new();
        for part in all {
            text.push_str(&page::dense_sheet(&self.text(part)?));
        }
        let text = self.with_names(&text)?.into_bytes();
        let before = self.made.get(path).map(|made| made.bytes == text);
        if before == Some(false) {
            return Err(
                format!("two pages join web/{path} with other sheets; name one anew").into()
            );
        }
        self.keep(path, text);
        Ok(())
    }

    /// A text with the names of all that it names, which is made before.
    fn with_names(&mut self, text: &str) -> Result<String> {
        let mut failed = None;
        let renamed = page::renamed(text, &mut |path| {
            if !self.files.contains_key(path) {
                return None;
            }
            self.asset(path).map_err(|problem| failed = Some(problem)).ok()
        });
        failed.map_or(Ok(renamed), Err)
    }

    fn keep(&mut self, path: &str, bytes: Vec<u8>) -> String {
        let digest = Sha256::digest(&bytes);
        let hash: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let (stem, end) = path.rsplit_once('.').unwrap_or((path, ""));
        let name = format!("{stem}.{}.{end}", &hash[..HASH_CHARS]);
        self.made.insert(path.to_owned(), Made { name: name.clone(), hash, bytes });
        name
    }
}

/// The table, as Rust, and the bytes beside it.
fn table(out: &Path, made: &BTreeMap<String, Made>) -> Result<String> {
    let mut rows = String::new();
    for (n, (path, Made { name, hash, bytes })) in made.iter().enumerate() {
        let end = path.rsplit('.').next().unwrap_or_default();
        let kind = KINDS.iter().find(|(kind, ..)| *kind == end);
        let (_, kind, packs) = kind.ok_or_else(|| format!("web/{path}: nobody knows this kind"))?;
        // Hardly anybody wants a large script or the document unpacked, and waits until it is.
        let is_large = *packs && end != "html" && bytes.len() > UNPACKED_BYTES_MAX;
        let packed_only = is_large && !path.starts_with(PACKED);
        let stored = if packed_only { &[][..] } else { bytes };
        let kept = written(&out.join(format!("{n}.kept")), stored)?;
        let row = format!("path: {path:?}, name: {name:?}, hash: {hash:?}, kind: {kind:?}");
        if path.starts_with(PACKED) {
            rows.push_str(&format!(
                "File {{ {row}, plain: b\"\", brotli: None, gzip: Some({kept}) }},\n"
            ));
            continue;
        }
        let packed = |ending: &str, packed: Vec<u8>| -> Result<String> {
            if !packs || packed.len() * 10 > bytes.len() * 9 {
                return Ok("None".into());
            }
            Ok(format!("Some({})", written(&out.join(format!("{n}.{ending}")), &packed)?))
        };
        let brotli = packed("br", brotli_of(bytes)?)?;
        let gzip = packed("gz", gzip_of(bytes)?)?;
        rows.push_str(&format!(
            "    File {{ {row}, plain: {kept}, brotli: {brotli}, gzip: {gzip} }},\n"
        ));
    }
    Ok(format!("/// In the order of their paths.\nstatic FILES: &[File] = &[\n{rows}];\n"))
}

/// What a file is included by.
fn written(path: &Path, bytes: &[u8]) -> Result<String> {
    fs::write(path, bytes)?;
    Ok(format!("include_bytes!({:?})", path.display().to_string()))
}

fn brotli_of(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut packed = Vec::new();
    let mut writer =
        brotli::CompressorWriter::new(&mut packed, 4_096, BROTLI_QUALITY, BROTLI_WINDOW_BITS);
    writer.write_all(bytes)?;
    drop(writer);
    Ok(packed)
}

fn gzip_of(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}
