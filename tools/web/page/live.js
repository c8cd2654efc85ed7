// While a run goes on its server is asked for newer data; less often when nobody looks, or it does not answer.

import { byId } from "./dom.js";
import { duration } from "./format.js";

const EVERY = 2000;
const HIDDEN = 15000;
const SLOWEST = 30000;

export function startLive(address, renew) {
  const state = { tag: null, failures: 0 };
  const ask = async () => {
    try {
      await poll(address, state, renew);
      state.failures = 0;
      if (state.kind === "finished") return;
    } catch {
      state.failures += 1;
      tell("connection lost", "lost");
    }
    setTimeout(ask, pause(state));
  };
  ask();
}

function pause({ failures }) {
  if (failures) return Math.min(SLOWEST, EVERY * 2 ** failures);
  return document.hidden ? HIDDEN : EVERY;
}

async function poll(address, state, renew) {
  const headers = state.tag ? { "If-None-Match": state.tag } : {};
  const response = await fetch(address + location.search, { headers, cache: "no-store", credentials: "same-origin" });
  if (response.status === 304) return tell(state.words, state.kind);
  if (!response.ok) throw new Error(String(response.status));
  state.tag = response.headers.get("ETag");
  const data = await response.json();
  [state.words, state.kind] = wordsOf(data);
  tell(state.words, state.kind);
  renew(data);
}

function wordsOf({ status, progress }) {
  if (status !== "running") return [status, status];
  if (!progress?.stage) return ["live", "running"];
  const steps = progress.total ? ` ${progress.done} of ${progress.total}` : "";
  const time = progress.seconds ? `, ${duration(progress.seconds)}` : "";
  const left = progress.left ? `, about ${duration(progress.left)} left` : "";
  return [`live · ${progress.stage}${steps}${time}${left}`, "running"];
}

// The badge at the top.
export function tell(words, kind) {
  const badge = byId("live");
  badge.hidden = false;
  badge.className = `live ${kind}`;
  if (badge.textContent !== words) badge.textContent = words;
}

export function tellStatus(data) {
  if (data.status !== "finished") tell(...wordsOf(data));
}
