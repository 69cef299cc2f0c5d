// Real Chromium, for stories that need a browser.

import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { installed } from "./dunlin.mjs";

const { chromium } = installed("playwright-core");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/// A browser for one story, on an empty profile. `options` are Playwright's.
export async function browser(t, options = {}) {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), "dunlin-chromium-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: FLAGS,
    viewport: { width: 1440, height: 1000 },
    ...options,
  });
  t.after(async () => {
    await context.close();
    fs.rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  });
  return context;
}
