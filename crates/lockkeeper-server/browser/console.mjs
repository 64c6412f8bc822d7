// The console in a real browser, against a live service with real contention. Run by `cargo xtask browser`.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { go, launch, open, texts } from "./page.mjs";
import { Service, together, until } from "./service.mjs";

const MANY = 10_000;
const service = new Service();
let browser;
let page;
let complaints;

before(async () => {
  await service.start();
  browser = await launch();
  ({ page, complaints } = await open(browser, service.url));
});

after(async () => {
  await browser?.close();
  await service.end();
});

const shows = (what, met) => until(what, met);
const rowNames = () => texts(page, ".row:not([hidden]) a.name");
const tickets = () => texts(page, ".ticket b");
const holder = () => page.locator("p.owner").textContent();

test("an empty service shows the first command, which works when pasted", async () => {
  await page.getByText("No locks yet").waitFor();
  const command = await page.locator(".code code").first().textContent();
  assert.match(command, new RegExp(`^curl ${service.url}/v1/locks/hello --json `));
  const body = JSON.parse(command.match(/'(.*)'/)[1]);
  const taken = await service.ask("POST", "/v1/locks/hello", body);
  await page.locator(".tile").first().waitFor();
  await shows("the first lock is counted", async () => (await texts(page, ".tile .big"))[0] === "1");
  await service.ask("DELETE", `/v1/locks/hello/tickets/${taken.ticket}`, undefined, { "lockkeeper-secret": taken.secret });
});

const LOCK = "deploy/production";
const crew = [];

test("holders and waiters change before the viewer's eyes", async () => {
  await go(page, `#/locks/${encodeURIComponent(LOCK)}`);
  await page.getByText("Not held").waitFor();
  for (const [i, name] of ["ci-01", "ci-02", "ci-03", "ci-04"].entries()) {
    const session = await service.session(name, `runner-${i + 1}`);
    crew.push({ name, session, grant: await session.queue(LOCK, { label: `build ${i + 1}` }) });
  }
  await shows("ci-01 in the chamber", async () => (await holder()) === "ci-01");
  await shows("three tickets in order", async () => String(await tickets()) === "ci-02,ci-03,ci-04");
  const first = crew.shift();
  await first.session.release(first.grant);
  await shows("ci-02 in the chamber", async () => (await holder()) === "ci-02");
  await shows("two tickets in order", async () => String(await tickets()) === "ci-03,ci-04");
});

test("the timeline and the fences follow every grant", async () => {
  await shows("two holds", async () => (await page.locator(".timeline rect.hold").count()) === 2);
  const owners = await texts(page, ".history .own");
  assert.deepEqual(owners, ["ci-02", "ci-01"]);
  const fences = (await texts(page, ".history .mono")).map((text) => Number(text.replace(/\D/g, "")));
  assert.ok(fences[0] > fences[1], String(fences));
});

test("a viewer who comes later is told what was before", async () => {
  const late = await open(browser, `${service.url}/#/locks/${encodeURIComponent(LOCK)}`);
  await until("both holds", async () => (await late.page.locator(".timeline rect.hold").count()) === 2);
  assert.deepEqual(late.complaints, []);
  await late.context.close();
});

test("evicting takes two steps and the fence typed back", async () => {
  await page.getByRole("button", { name: "Evict…" }).click();
  await page.getByText("Next in line: ci-03").waitFor();
  await page.getByRole("button", { name: "Continue" }).click();
  const now = page.getByRole("button", { name: "Evict now" });
  const fence = (await page.locator("dialog b.mono").textContent()).replace(/\D/g, "");
  await page.locator("dialog input").fill(fence.slice(0, -1));
  assert.ok(await now.isDisabled());
  await page.locator("dialog input").fill(fence);
  await now.click();
  await shows("ci-03 in the chamber", async () => (await holder()) === "ci-03");
  assert.equal(await page.locator("dialog[open]").count(), 0);
  await page.locator(".timeline .s-evicted").waitFor();
  const held = await service.ask("GET", `/v1/locks/${encodeURIComponent(LOCK)}`);
  assert.equal(held.tickets[0].owner.program, "ci-03");
});

test("an eviction under an old fence changes nothing", async () => {
  await page.getByRole("button", { name: "Evict…" }).click();
  await page.getByRole("button", { name: "Continue" }).click();
  const fence = (await page.locator("dialog b.mono").textContent()).replace(/\D/g, "");
  const third = crew.find(({ name }) => name === "ci-03");
  await third.session.release(third.grant);
  await shows("ci-04 in the chamber", async () => (await holder()) === "ci-04");
  await page.locator("dialog input").fill(fence);
  await page.getByRole("button", { name: "Evict now" }).click();
  await shows("an answer", async () => !(await page.locator("dialog[open]").count()) || (await page.locator("dialog [role=alert]").textContent()));
  if (await page.locator("dialog[open]").count()) await page.keyboard.press("Escape");
  assert.equal(await holder(), "ci-04");
  complaints.splice(0, complaints.length, ...complaints.filter((text) => !text.includes("status of 409")));
});

test("markup in names, owners and labels is text", async () => {
  const evil = "<img src=x onerror=alert(1)>/<b>bold</b> ";
  const session = await service.session("<script>alert(2)</script>", "<i>host</i>");
  await session.queue(evil, { label: "<u>label</u>" });
  await go(page, "#/locks");
  await shows("the name as text", async () => (await rowNames()).some((name) => name.startsWith("<img src=x onerror=alert(1)>/<b>bold</b>")));
  await go(page, `#/locks/${encodeURIComponent(evil)}`);
  await shows("the owner as text", async () => (await holder()) === "<script>alert(2)</script>");
  assert.equal(await page.locator("main img, main u, main i:not(.bar i), main script").count(), 0);
  await session.close();
});

test("one lock among ten thousand is found while typing, and the table stays small", async () => {
  await go(page, "#/locks");
  const sessions = await Promise.all(Array.from({ length: 10 }, (_, i) => service.session(`worker-0${i}`, `node-${i}`)));
  const names = Array.from({ length: MANY }, (_, i) => `tenant/${i % 14}/part-${String(i).padStart(5, "0")}`);
  await together(names.entries(), 8, ([i, name]) => sessions[i % 10].queue(name));
  const seen = /^10\u2009\d{3} of 10\u2009\d{3}$/;
  await until("all locks are counted", async () => seen.test(await page.locator(".count").textContent()), 90_000);
  await page.keyboard.press("/");
  const took = await page.evaluate(() => {
    const input = document.querySelector(".search input");
    const times = [];
    for (const text of ["p", "pa", "part-0", "part-04", "part-042", "part-0424", "part-04242"]) {
      const start = performance.now();
      input.value = text;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      document.querySelector(".table").offsetHeight;
      times.push(performance.now() - start);
    }
    return times;
  });
  console.log(`# a key press in the search among ${MANY} locks: at most ${Math.max(...took).toFixed(1)} ms`);
  assert.ok(Math.max(...took) < 500, String(took));
  await shows("the one row", async () => String(await rowNames()) === `tenant/${4242 % 14}/part-04242`);
  await page.locator(".search input").fill("");
  await shows("all rows again", async () => seen.test(await page.locator(".count").textContent()));
  const slowest = await page.evaluate(async () => {
    const table = document.querySelector(".table");
    let [last, worst] = [performance.now(), 0];
    for (let i = 0; i < 60; i++) {
      table.scrollTop += 977;
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      [worst, last] = [Math.max(worst, now - last), now];
    }
    table.scrollTop = table.scrollHeight;
    return worst;
  });
  console.log(`# the longest frame while scrolling: ${slowest.toFixed(0)} ms`);
  assert.ok((await page.locator(".row").count()) < 60);
  await page.locator(".search input").fill("part-04242");
  await page.keyboard.press("Enter");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await shows("its page", async () => (await page.locator("h1 .name").textContent()) === `tenant/${4242 % 14}/part-04242`);
});

test("sessions show who holds, and lead to the locks", async () => {
  await go(page, "#/sessions");
  await page.locator(".row .own", { hasText: "worker-07" }).first().click();
  await page.getByText("Tickets of worker-07").waitFor();
  assert.ok((await page.locator(".mine li").count()) > 100);
  await page.locator(".mine a").first().click();
  await shows("a lock of its own", async () => (await holder()) === "worker-07");
  await go(page, "#/sessions");
  await page.locator(".row a.name").first().click();
  await page.locator("h1 .name").waitFor();
});

test("events appear as they happen, and pause freezes them", async () => {
  await go(page, "#/events");
  const session = await service.session("cron-1", "node-x");
  const grant = await session.queue("nightly/report");
  await page.locator(".event", { hasText: "nightly/report" }).first().waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await session.release(grant);
  await page.locator(".fresh", { hasText: "new" }).waitFor();
  assert.equal(await page.locator(".event", { hasText: "released" }).filter({ hasText: "nightly/report" }).count(), 0);
  await page.getByRole("button", { name: "Resume" }).click();
  await page.locator(".event", { hasText: "released" }).filter({ hasText: "nightly/report" }).first().waitFor();
});

test("a cell is read with the fence under which it was written", async () => {
  const session = await service.session("leader", "node-c");
  const grant = await session.queue("config/leader");
  const headers = { ...session.headers, "lockkeeper-ticket": grant.ticket };
  const put = await fetch(`${service.url}/v1/cells/${encodeURIComponent("config/leader")}`, { method: "PUT", headers, body: '{"leader":"node-c"}' });
  assert.ok(put.ok, `${put.status} ${await put.text()}`);
  await go(page, `#/cells/${encodeURIComponent("config/leader")}`);
  await shows("the value", async () => (await page.locator("pre").textContent()) === '{"leader":"node-c"}');
  const fence = (await page.locator(".cell .facts dd.mono").first().textContent()).replace(/\D/g, "");
  assert.equal(fence, grant.fence);
  await session.close();
});

test("the keyboard reaches every page", async () => {
  await page.keyboard.press("Escape");
  for (const [key, hash] of [["o", "#/"], ["l", "#/locks"], ["s", "#/sessions"], ["e", "#/events"], ["c", "#/cells"]]) {
    await page.keyboard.press("g");
    await page.keyboard.press(key);
    await shows(hash, async () => (await page.evaluate(() => location.hash)) === hash);
  }
  await page.keyboard.press("?");
  await page.locator("dialog[open] kbd").first().waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  await shows("the search", () => page.evaluate(() => document.activeElement?.type === "search"));
  await page.keyboard.press("Escape");
});

test("theme and language change and are kept", async () => {
  await go(page, "#/");
  await page.locator("#theme").click();
  await shows("dark", () => page.evaluate(() => document.documentElement.dataset.theme === "dark"));
  const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(dark, "rgb(11, 15, 18)");
  await page.locator("#lang").click();
  await page.getByRole("link", { name: "总览" }).waitFor();
  await page.reload();
  await page.getByRole("link", { name: "总览" }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.locator("#lang").click();
  await page.getByRole("link", { name: "Overview" }).waitFor();
});

test("no page is wider than a telephone", async () => {
  const narrow = await open(browser, service.url, { width: 360, height: 800 });
  for (const hash of ["#/", "#/locks", "#/sessions", "#/events", "#/cells", `#/locks/${encodeURIComponent(LOCK)}`]) {
    await go(narrow.page, hash);
    await narrow.page.locator("main > *").first().waitFor();
    const over = await narrow.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(over <= 0, `${hash}: ${over} px too wide`);
  }
  assert.deepEqual(narrow.complaints, []);
  await narrow.context.close();
});

test("the browser had nothing to complain about", () => assert.deepEqual(complaints, []));

test("the page survives a restart of the service", async () => {
  await go(page, `#/locks/${encodeURIComponent(LOCK)}`);
  await shows("ci-04 in the chamber", async () => (await holder()) === "ci-04");
  await service.stop();
  await shows("the mark", async () => (await page.locator("#live").textContent()).startsWith("Reconnecting"));
  await page.locator("#banner", { hasText: "nothing counts down" }).waitFor();
  await shows("stale", async () => (await page.locator("#live").textContent()).startsWith("Stale"));
  await service.start();
  await page.locator("#banner button").click();
  await shows("live again", async () => (await page.locator("#live").textContent()) === "Live");
  assert.equal(await holder(), "ci-04");
  await go(page, "#/events");
  await page.locator(".note.warn").waitFor({ state: "hidden" });
  const session = await service.session("after", "node-z");
  await session.queue("after/restart");
  await page.locator(".event", { hasText: "after/restart" }).first().waitFor();
  const lasting = complaints.filter((text) => !/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|status of 503/.test(text));
  assert.deepEqual(lasting, []);
});
