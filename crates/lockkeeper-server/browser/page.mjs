// Chromium with the console in it. Every complaint of the browser is kept: errors, warnings, breaches of the policy.

import { existsSync } from "node:fs";
import { createRequire } from "node:module";

const { chromium } = createRequire(process.env.PLAYWRIGHT || import.meta.url)("playwright-core");

const PLACES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launch() {
  const executablePath = PLACES.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("no chromium: install it (apt-get install chromium) or set CHROMIUM to its path");
  // A container's root has no sandbox of its own.
  const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath, args });
}

/** A page with settings of its own; `complaints` collects what the browser says against it. */
export async function open(browser, url, { theme = "light", lang = "en", width = 1440, height = 900 } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, reducedMotion: "reduce", locale: "en-GB" });
  const page = await context.newPage();
  const complaints = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error.stack)));
  await page.exposeFunction("policyBreach", (text) => complaints.push(text));
  await page.addInitScript(([theme, lang]) => {
    localStorage.getItem("lockkeeper-theme") ?? localStorage.setItem("lockkeeper-theme", theme);
    localStorage.getItem("lockkeeper-lang") ?? localStorage.setItem("lockkeeper-lang", lang);
    addEventListener("securitypolicyviolation", (e) => window.policyBreach(`policy: ${e.violatedDirective} ${e.blockedURI}`));
  }, [theme, lang]);
  await page.goto(url);
  page.setDefaultTimeout(20_000);
  return { page, context, complaints };
}

export const go = (page, hash) => page.evaluate((hash) => void (location.hash = hash), hash);

/** The texts of all elements that match. */
export const texts = (page, selector) => page.locator(selector).allTextContents();
