// The live console: shows the parts that the server sends, for the runs that the address names after `#`.
const narrow = matchMedia("(max-width: 760px)");
const connection = document.getElementById("connection");
const main = document.querySelector("main");
let source = null;
let isNew = false;  // the view was changed by the reader: its title gets the focus
let chosen = new Set();  // runs to compare

const selectedRuns = () => new URLSearchParams(location.hash.slice(1)).getAll("run");

function say(text, isLost) {
  if (connection.textContent !== text) connection.textContent = text;
  connection.classList.toggle("lost", isLost);
  main.classList.toggle("stale", isLost);
}

// Makes `old` equal to `fresh` and keeps elements that are in both, with their focus, selection and scroll position.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.nodeName !== "TIME") morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const rows = new Map([...old.children].filter(row => row.dataset.key).map(row => [row.dataset.key, row]));
  const children = [...fresh.childNodes];  // appending one moves it out of `fresh`
  children.forEach((child, index) => {
    const row = child.dataset?.key && rows.get(child.dataset.key);
    if (row && old.childNodes[index] !== row) old.insertBefore(row, old.childNodes[index] ?? null);
    if (old.childNodes[index]) morph(old.childNodes[index], child); else old.append(child);
  });
  while (old.childNodes.length > children.length) old.lastChild.remove();
}

function display(parts) {
  for (const [name, html] of Object.entries(parts)) {
    const place = document.querySelector(`[data-part="${name}"]`), fresh = document.createElement("div");
    if (!place) continue;
    fresh.innerHTML = html.trim();
    morphChildren(place, fresh);
  }
  attach(main);
  showAges();
  showChoice();
  const title = document.querySelector("[data-title]");
  document.title = title ? title.dataset.title : "xpk console";
  if (isNew && (title || selectedRuns().length === 0)) { isNew = false; (document.querySelector("h2.title") ?? main).focus({ preventScroll: true }); scrollTo(0, 0); }
}

function showAges() {
  for (const time of document.querySelectorAll("time")) {
    const isFuture = time.className === "until", sign = isFuture ? -1 : 1;
    const seconds = Math.max(0, sign * (Date.now() - Date.parse(time.dateTime)) / 1000);
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]].find(([size]) => seconds >= 2 * size) ?? [1, "s"];
    const length = `${Math.floor(seconds / size)}${unit}`;
    const text = !Number.isFinite(seconds) ? "–" : !isFuture ? length : seconds < 1.5 ? "now" : time.dataset.before + length;
    if (time.textContent !== text) time.textContent = text;
  }
}

function showChoice() {
  const link = document.getElementById("compare");
  for (const box of document.querySelectorAll("input.choice")) {
    box.checked = chosen.has(box.value);
    box.disabled = chosen.size >= 4 && !box.checked;
  }
  link.hidden = selectedRuns().length > 0 || chosen.size < 2;
  link.textContent = `Compare ${chosen.size} runs`;
  link.href = "#" + new URLSearchParams([...chosen].map(key => ["run", key]));
}

function connect() {
  source?.close();
  source = null;
  if (document.hidden) { say("Paused", false); return; }
  const query = new URLSearchParams(selectedRuns().map(key => ["run", key]));
  if (narrow.matches) query.set("screen", "narrow");
  source = new EventSource(`/events?${query}`);
  source.addEventListener("parts", event => { say("Live", false); display(JSON.parse(event.data)); });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) say("Not connected. Open the address that `xpk serve` prints.", true);
    else say("Connection lost, trying again…", true);
  });
}

function showView() {
  for (const place of document.querySelectorAll("[data-part]")) place.replaceChildren();
  document.getElementById("back").hidden = selectedRuns().length === 0;
  document.getElementById("tip").hidden = true;
  showChoice();
  connect();
}

main.addEventListener("change", event => {
  if (!event.target.matches("input.choice")) return;
  if (event.target.checked) chosen.add(event.target.value); else chosen.delete(event.target.value);
  showChoice();
});
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => { isNew = true; showView(); });
addEventListener("visibilitychange", connect);
narrow.addEventListener("change", showView);
setInterval(showAges, 1000);
showView();
