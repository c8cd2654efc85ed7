// What a server is asked for again and again; less often when nobody looks, or it does not answer.

import { byId } from "./dom.js";
import { duration } from "./format.js";

const EVERY = 2000;
const HIDDEN = 15000;
const SLOWEST = 30000;

// `take` gets an answer that is new and returns words and kind of the badge at the top; "finished" is the end.
export async function follow(address, every, take) {
  let [tag, failures, badge] = [null, 0, []];
  const ask = async () => {
    const headers = tag ? { "If-None-Match": tag } : {};
    const response = await fetch(address + location.search, { headers, cache: "no-store", credentials: "same-origin" });
    if (response.status === 304) return;
    if (!response.ok) throw new Error(String(response.status));
    badge = await take(response);
    tag = response.headers.get("ETag");
  };
  for (;;) {
    try {
      await ask();
      failures = 0;
      tell(...badge);
      if (badge[1] === "finished") return;
    } catch {
      failures += 1;
      tell("connection lost", "lost");
    }
    const pause = document.hidden ? HIDDEN : every;
    await new Promise((done) => setTimeout(done, failures ? Math.min(SLOWEST, every * 2 ** failures) : pause));
  }
}

export function startLive(address, renew) {
  follow(address, EVERY, async (response) => {
    const data = await response.json();
    renew(data);
    return wordsOf(data);
  });
}

function wordsOf({ status, progress }) {
  if (status !== "running") return [status, status];
  if (!progress?.stage) return ["live", "running"];
  const steps = progress.total ? ` ${progress.done} of ${progress.total}` : "";
  const time = progress.seconds ? `, ${duration(progress.seconds)}` : "";
  const left = progress.left ? `, about ${duration(progress.left)} left` : "";
  return [`live · ${progress.stage}${steps}${time}${left}`, "running"];
}

function tell(words, kind) {
  const badge = byId("live");
  badge.hidden = false;
  badge.className = `live ${kind}`;
  if (badge.textContent !== words) badge.textContent = words;
}

export function tellStatus(data) {
  if (data.status !== "finished") tell(...wordsOf(data));
}
