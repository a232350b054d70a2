// What the server's content policy and the two languages demand of every page, kept true by reading
// the files.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import { chooseLanguage, chooseLocale, fill } from "../i18n.js";
import { words as cashier } from "../cashier/words.js";
import { words as console_ } from "../console/words.js";
import { words as docs } from "../docs/words.js";
import { words as shop } from "../shop/words.js";

const WEB = join(dirname(fileURLToPath(import.meta.url)), "..");
const read = (path) => readFileSync(join(WEB, path), "utf8");
const PAGES = { shop, cashier, docs, console: console_ };

function modulesOf(file, found = new Set()) {
  for (const [, path] of read(file).matchAll(/from "(\.[^"]+)"/g)) {
    const next = normalize(join(dirname(file), path));
    if (found.has(next)) continue;
    found.add(next);
    modulesOf(next, found);
  }
  return found;
}

for (const [page, words] of Object.entries(PAGES)) {
  const html = read(`${page}/index.html`);
  const sources = [`${page}/${page}.js`, ...modulesOf(`${page}/${page}.js`)];

  test(`${page}: nothing inline, and every file it names exists`, () => {
    assert.doesNotMatch(html, /<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)/);
    for (const [, path] of html.matchAll(/(?:href|src)="\/assets\/([^"]+)"/g)) assert.ok(existsSync(join(WEB, path)), path);
  });

  test(`${page}: it names one module, which brings all others with it`, () => {
    const modules = [...html.matchAll(/<script type="module" src="\/assets\/([^"]+)"/g)].map(([, path]) => path);
    assert.deepEqual(modules, [`${page}/${page}.js`]);
    assert.doesNotMatch(html, /modulepreload/);
  });

  test(`${page}: markup is never made from data`, () => {
    for (const source of sources) {
      assert.doesNotMatch(read(source), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/, source);
    }
  });

  test(`${page}: both languages say the same things, and say all that is asked for`, () => {
    assert.deepEqual(Object.keys(words.en), Object.keys(words.zh));
    for (const key of Object.keys(words.en)) {
      const holes = (text) => [...text.matchAll(/\{\w+\}/g)].map(([hole]) => hole).sort();
      assert.deepEqual(holes(words.en[key]), holes(words.zh[key]), key);
    }
    const asked = [...html.matchAll(/data-t="([^"]+)"/g)].map(([, key]) => key);
    const own = sources.filter((source) => source.startsWith(`${page}/`)).map(read).join("\n");
    asked.push(...[...own.matchAll(/say\(words, "([^"]+)"/g)].map(([, key]) => key));
    for (const key of asked) assert.ok(key in words.en, key);
  });
}

test("no file is left that no page uses", () => {
  const used = Object.keys(PAGES).flatMap((page) => [`${page}/${page}.js`, ...modulesOf(`${page}/${page}.js`)]);
  const present = ["", ...Object.keys(PAGES)].flatMap((folder) => readdirSync(join(WEB, folder))
    .filter((name) => name.endsWith(".js")).map((name) => join(folder, name)));
  assert.deepEqual(present.filter((file) => !used.includes(file)), []);
});

test("the language is the remembered one, else the first the browser likes, else English", () => {
  assert.equal(chooseLanguage("en", ["zh-CN"]), "en");
  assert.equal(chooseLanguage(null, ["fr", "zh-Hant-TW", "en"]), "zh");
  assert.equal(chooseLanguage("tlh", ["de"]), "en");
  assert.equal(chooseLanguage(null, undefined), "en");
  assert.equal(chooseLocale("en", ["zh-CN", "en-GB"]), "en-GB");
  assert.equal(chooseLocale("zh", ["en-US"]), "zh-CN");
});

test("holes in a text are filled; data with braces is not filled again", () => {
  assert.equal(fill("{a} of {b}, {c}", { a: "{b}", b: 2 }), "{b} of 2, {c}");
});
