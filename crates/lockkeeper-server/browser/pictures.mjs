// Takes the pictures of docs/img: a day at a company with a good deal of contention, made through the service itself.

import { execFileSync } from "node:child_process";
import { mkdirSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { launch, open } from "./page.mjs";
import { Service, together } from "./service.mjs";

const FOLDER = process.env.PICTURES || join(dirname(fileURLToPath(import.meta.url)), "../../../docs/img");
const MOST = 150_000;
/** For so long the clients work before the first picture, so that timelines and curves have something to show. */
const WORK = Number(process.env.WORK_SECONDS || 100) * 1000;

const WIDE = { width: 1440, height: 900 };
const NARROW = { width: 360, height: 800 };

mkdirSync(FOLDER, { recursive: true });
const service = new Service();
const random = (low, high) => low + Math.random() * (high - low);
const pick = (list) => list[Math.floor(Math.random() * list.length)];
const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let working = true;

/** One worker of a crew: takes the lock, works, gives it back, comes again. */
async function work(session, lock, hold, idle, more) {
  while (working) {
    const id = [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
    const ask = () => service.ask("POST", `/v1/locks/${encodeURIComponent(lock)}`, { ticket: id, manner: "queue", wait_ms: 5000, ...more() }, session.headers);
    let taken = await ask();
    while (!taken.held && working) taken = await ask();
    await rest(random(0.4, 1.6) * hold);
    if (taken.held) await session.release({ lock, ticket: id });
    await rest(random(0.5, 1.5) * idle);
  }
}

async function crew(count, name, host, lock, hold, idle, more = () => ({})) {
  for (let i = 1; i <= count; i++) {
    const session = await service.session(`${name}-${String(i).padStart(2, "0")}`, `${host}-${1 + (i % 9)}`, 15_000);
    const keep = setInterval(() => session.renew().catch(() => {}), 5000);
    work(session, lock, hold, idle, more).catch(() => {}).finally(() => clearInterval(keep));
  }
}

async function stock() {
  const firms = "acme,cobalt,delft,ember,fjord,harbour,juniper,kestrel,lumen,orchard,pelican,rowan,tern,willow".split(",");
  const jobs = ["billing", "import", "sync", "report", "backup", "audit"];
  const names = new Set(["nightly ", "migrate/2026-11-16"]);
  const four = (i) => String(i).padStart(4, "0");
  for (let i = 0; names.size < 2400; i++) {
    names.add([`orders/shard-${four(i)}`, `invoices/2026-11/${four(i)}`, `index/products/part-${four(i)}`, `tenant/${pick(firms)}/${pick(jobs)}`][i % 4]);
  }
  const sessions = await Promise.all(Array.from({ length: 24 }, (_, i) => service.session(`worker-${String(i + 1).padStart(2, "0")}`, `node-${"abc"[i % 3]}${1 + (i % 8)}`)));
  await together([...names].entries(), 8, ([i, name]) => sessions[i % 24].queue(name));
  for (const [name, count] of [["tenant/acme/billing", 96], ["tenant/kestrel/import", 46], ["index/products/part-0042", 29], ["migrate/2026-11-16", 20], ["orders/shard-0007", 7], ["tenant/tern/report", 6]]) {
    const waiting = [...sessions].sort(() => Math.random() - 0.5);
    for (let i = 0; i < count; i++) await waiting[i % 24].queue(name);
  }
  // The long line: a thousand tickets that came over some time.
  const settle = await Promise.all(Array.from({ length: 60 }, (_, i) => service.session(`settle-${String(i + 1).padStart(2, "0")}`, `pool-${1 + (i % 9)}`)));
  const enter = async () => {
    for (let i = 0; i < 1034 && working; i++) {
      await settle[i % 60].queue("orders/settlement");
      await rest(WORK / 1300);
    }
  };
  enter();
}

async function shoot(browser, name, hash, look, before) {
  const { page, context, complaints } = await open(browser, `${service.url}/${hash}`, { ...look });
  await page.locator("#live", { hasText: /Live|实时/ }).waitFor();
  await page.locator("main > *").first().waitFor();
  await before?.(page);
  await rest(look.patience ?? 2500);
  const path = join(FOLDER, `console-${name}.png`);
  await page.screenshot({ path });
  compress(path);
  console.log(`${name}: ${statSync(path).size} bytes${complaints.length ? " " + complaints.join("; ") : ""}`);
  await context.close();
}

/** Fewer colours: a picture of a page needs no more than 256. */
function compress(path) {
  try {
    execFileSync("pngquant", ["--force", "--ext", ".png", "--speed", "1", "--strip", path]);
  } catch {
    console.log("pngquant is missing: the picture stays as it is");
  }
  if (statSync(path).size > MOST) throw new Error(`${path} has more than ${MOST} bytes`);
}

const settled = (page) => page.locator(".count").filter({ hasText: /^2\u2009\d{3} of|^2\u2009\d{3} \// }).waitFor();

async function evictTwo(page) {
  await page.getByRole("button", { name: "Evict…" }).click();
  await page.getByRole("button", { name: "Continue" }).click();
  await page.locator("dialog input").pressSequentially((await page.locator("dialog b.mono").textContent()).replace(/\D/g, "").slice(0, 4));
}

const DEPLOY = "#/locks/deploy%2Fproduction";

await service.start();
const browser = await launch();
try {
  for (const theme of ["light", "dark"]) {
    await shoot(browser, `empty-${theme}`, "#/", { ...WIDE, theme });
    await shoot(browser, `empty-${theme}-narrow`, "#/", { ...NARROW, theme });
  }
  await stock();
  await crew(10, "ci", "runner", "deploy/production", 9000, 1500, () => ({ label: "" }));
  await crew(14, "web", "edge", "cache/catalogue", WORK / 10, WORK / 20, () => ({ mode: Math.random() < 0.12 ? "exclusive" : "shared" }));
  await crew(9, "train", "gpu-host", "gpu/a100", WORK / 6, WORK / 50, () => ({ mode: { permits: { weight: 1 + Math.floor(Math.random() * 3), of: 8 } } }));
  await crew(6, "ledger", "book", "报表/日终", WORK / 9, WORK / 30);
  await crew(4, "cron", "node-c", "mail/digest", 1500, 900);
  await crew(3, "sync", "node-d", "search/reindex", 2500, 700);
  const watcher = await open(browser, `${service.url}/${DEPLOY}`, WIDE);
  await rest(WORK / 2);
  const line = await service.ask("GET", "/v1/locks/deploy%2Fproduction");
  const first = line.tickets[0];
  await service.ask("POST", "/v1/locks/deploy%2Fproduction/evict", { ticket: first.ticket, fence: first.fence });
  await rest(WORK / 2);
  for (const theme of ["light", "dark"]) {
    const both = [["", WIDE], ["-narrow", NARROW]];
    for (const [suffix, size] of both) {
      const look = { ...size, theme };
      await shoot(browser, `overview-${theme}${suffix}`, "#/", { ...look, patience: 9000 });
      await shoot(browser, `locks-${theme}${suffix}`, "#/locks", look, settled);
      if (size === WIDE) await shoot(browser, `lock-${theme}`, DEPLOY, look);
      await shoot(browser, `line-${theme}${suffix}`, "#/locks/orders%2Fsettlement", look);
      await shoot(browser, `events-${theme}${suffix}`, "#/events", { ...look, patience: 9000 });
      await shoot(browser, `evict-${theme}${suffix}`, DEPLOY, look, evictTwo);
    }
  }
  await shoot(browser, "overview-zh", "#/", { ...WIDE, theme: "dark", lang: "zh", patience: 9000 });
  await watcher.context.close();
} finally {
  working = false;
  await browser.close();
  await service.end();
}
