// Server-sent events by fetch: EventSource cannot send a token. Goes on after any break, and misses nothing.

const LONGEST_MS = 15000;
const SILENCE_MS = 40000; // the server is never silent for so long

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Follows the events until `signal` is aborted. Throws Refused where the viewer is not let in.
export async function follow(token, on, signal) {
  // With another character fetch would fail as it does without a connection, again and again.
  if (!/^[\x21-\x7e]*$/.test(token)) {
    throw new Refused(401, "the token has characters that no token has, such as a space or a typographic dash: copy it again");
  }
  let last = "";
  let pause = 500;
  while (!signal.aborted) {
    const silence = new AbortController();
    const stop = () => silence.abort();
    signal.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENCE_MS);
    try {
      const headers = { Accept: "text/event-stream" };
      if (token) headers.Authorization = `Bearer ${token}`;
      if (last) headers["Last-Event-ID"] = last;
      const answer = await fetch("api/events", { headers, cache: "no-store", signal: silence.signal });
      if (!answer.ok) throw new Refused(answer.status, await reason(answer));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(timer);
        timer = setTimeout(stop, SILENCE_MS);
        rest += value;
        if (!value.includes("\n")) continue; // of a long event there is more: it is looked through once
        const events = rest.split("\n\n");
        rest = events.pop();
        for (const text of events) {
          const event = parse(text);
          if (!event) continue;
          if (event.id) last = event.id;
          on(event.event, JSON.parse(event.data));
          pause = 500;
        }
      }
      on("ended");
    } catch (error) {
      if (error instanceof Refused && [401, 403, 421].includes(error.status)) throw error;
      if (!signal.aborted) on("broken", error instanceof Refused ? error.message : "");
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
    }
    if (signal.aborted) return;
    await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random())));
    pause = Math.min(pause * 2, LONGEST_MS);
  }
}

async function reason(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `HTTP ${answer.status}`;
  }
}

function parse(text) {
  const event = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return event.data === undefined ? null : event;
}
