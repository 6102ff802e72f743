"use strict";

const MOST_MODELS = 200;

const element = (id) => document.getElementById(id);
const log = element("log");
const modelList = element("model");
const promptBox = element("prompt");
const keyBox = element("key");

const messages = []; // the conversation as the server gets it
let running = null; // the AbortController of the running reply

// ---- the key and the models

function headers() {
  const key = sessionStorage.getItem("key");
  const fields = { "Content-Type": "application/json" };
  if (key) {
    fields.Authorization = `Bearer ${key}`;
  }
  return fields;
}

async function refusal(response) {
  // Return what a failed response says, and ask for the key if it is missing or wrong.
  if (response.status === 401) {
    element("key-form").hidden = false;
    keyBox.focus();
    return "This server needs its API key.";
  }
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

async function listModels() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) {
      say(await refusal(response), true);
      return;
    }
    const names = (await response.json()).data.map((model) => model.id);
    modelList.replaceChildren(...names.slice(0, MOST_MODELS).map((name) => new Option(name)));
    element("key-form").hidden = true;
    say("");
    fillExamples();
    promptBox.focus();
  } catch {
    say("The server does not answer.", true);
  }
}

function fillExamples() {
  for (const place of document.querySelectorAll("[data-template]")) {
    place.textContent = place.dataset.template
      .replaceAll("{address}", location.origin)
      .replaceAll("{model}", modelList.value || "MODEL");
  }
}

// ---- the conversation on the page: text only, never markup

function say(text, isError = false) {
  const status = element("status");
  status.textContent = text;
  status.classList.toggle("error", isError);
}

function append(parent, tag, className, text = "") {
  const child = document.createElement(tag);
  child.className = className;
  child.textContent = text;
  parent.append(child);
  return child;
}

function follow(change) {
  // Change the conversation, and stay at its end if the reader is there.
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (isAtEnd) {
    log.scrollTop = log.scrollHeight;
  }
}

class ReplyView {
  constructor() {
    this.box = append(log, "div", "reply");
    this.answer = null;
    this.thinking = null;
    this.text = "";
  }

  addThought(text) {
    if (this.thinking === null) {
      const details = append(this.box, "details", "");
      append(details, "summary", "", "Thinking");
      this.thinking = append(details, "div", "thinking").appendChild(new Text());
    }
    this.thinking.appendData(text);
  }

  addText(text) {
    if (this.answer === null) {
      this.answer = append(this.box, "div", "message").appendChild(new Text());
    }
    this.text += text;
    this.answer.appendData(text);
  }

  finish(note) {
    // Set the code between fences in its own boxes, and add a line below the reply.
    if (this.answer !== null) {
      const parts = this.text.split(/^ {0,3}```[^`\n]*$\n?/m);
      const boxes = parts.map((part, index) => {
        const box = document.createElement(index % 2 ? "pre" : "div");
        box.className = "message";
        box.textContent = part.replace(/^\n+|\s+$/g, "");
        return box;
      });
      this.answer.parentNode.replaceWith(...boxes.filter((box) => box.textContent));
    }
    append(this.box, "p", "note", note);
  }

  get isEmpty() {
    return this.answer === null && this.thinking === null;
  }
}

// ---- replies

async function* events(body) {
  // Yield the events of a stream; lines that begin with a colon only show that it lives.
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") {
        yield JSON.parse(line.slice(6));
      }
    }
  }
}

async function writeReply(view, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    signal,
    body: JSON.stringify({
      model: modelList.value,
      messages,
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) {
    throw new Error(await refusal(response));
  }

  let model = "";
  let start = 0;
  let nTokens = 0;
  let reason = "";
  for await (const event of events(response.body)) {
    if (event.error) {
      throw new Error(event.error.message);
    }
    const choice = (event.choices || [])[0] || {};
    const delta = choice.delta || {};
    model = event.model || model;
    reason = choice.finish_reason || reason;
    if (event.usage) {
      nTokens = event.usage.completion_tokens;
    }
    if (delta.reasoning_content || delta.content) {
      start = start || performance.now();
      say("Writing ...");
      follow(() => {
        if (delta.reasoning_content) {
          view.addThought(delta.reasoning_content);
        }
        if (delta.content) {
          view.addText(delta.content);
        }
      });
    }
  }
  return summary(model, nTokens, (performance.now() - start) / 1000, reason);
}

function summary(model, nTokens, seconds, reason) {
  const parts = [`${model}: ${nTokens} tokens`];
  if (nTokens > 1 && seconds > 0) {
    parts.push(`${((nTokens - 1) / seconds).toFixed(1)} tokens per second`);
  }
  if (reason === "length") {
    parts.push("the answer is cut: there is no room for more");
  }
  return parts.join(", ");
}

function setRunning(controller) {
  running = controller;
  element("send").hidden = controller !== null;
  element("stop").hidden = controller === null;
}

async function send() {
  const question = promptBox.value;
  if (running || !question.trim()) {
    return;
  }
  const controller = new AbortController();
  setRunning(controller);
  element("empty").hidden = true;
  promptBox.value = "";
  messages.push({ role: "user", content: question });
  const questionBox = append(log, "div", "message user", question);
  const view = new ReplyView();
  log.scrollTop = log.scrollHeight;
  say("Waiting for the model ...");

  let line = "";
  let error = null;
  try {
    line = await writeReply(view, controller.signal);
  } catch (failure) {
    error = failure;
    line = "Stopped.";
  }
  if (running !== controller) {
    return; // a new conversation has begun
  }
  setRunning(null);
  const isStopped = controller.signal.aborted;
  if (error && view.isEmpty) {
    messages.pop();
    questionBox.remove();
    view.box.remove();
    element("empty").hidden = messages.length > 0;
    promptBox.value = promptBox.value || question;
  } else {
    messages.push({ role: "assistant", content: view.text });
    follow(() => view.finish(line));
  }
  if (error && !isStopped) {
    say(error instanceof TypeError ? "The server does not answer." : error.message, true);
  } else {
    say("");
  }
}

function stop() {
  if (running) {
    running.abort();
  }
}

function beginNew() {
  const controller = running;
  setRunning(null);
  if (controller) {
    controller.abort();
  }
  messages.length = 0;
  for (const child of [...log.querySelectorAll(".reply, .message.user")]) {
    child.remove();
  }
  element("empty").hidden = false;
  say("");
  promptBox.focus();
}

// ---- keys and buttons

element("prompt-form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = keyBox.value.trim();
  if (!/^[\x21-\x7e]*$/.test(key)) {
    say("A key has letters, digits and signs only.", true);
    return;
  }
  sessionStorage.setItem("key", key);
  listModels();
});
element("stop").addEventListener("click", () => {
  stop();
  promptBox.focus();
});
element("new").addEventListener("click", beginNew);
modelList.addEventListener("change", fillExamples);
promptBox.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    stop();
  }
});

fillExamples();
if (document.body.dataset.needsKey) {
  listModels();
}
