// Tooltips of charts, by pointer and by keyboard. Call `attach` again after charts were added.
const tip = document.getElementById("tip");
const attached = new WeakSet();

function show(text, x, y) {
  tip.textContent = text; tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 4)) + "px";
  tip.style.top = Math.max(4, y - 34) + "px";
}

function readKeys(element, count, choose, hide) {
  let at = -1;
  element.addEventListener("keydown", event => {
    const last = count() - 1;
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 }[event.key];
    if (event.key === "Escape") { hide(); return; }
    if (next === undefined || last < 0) return;
    event.preventDefault();
    at = Math.max(0, Math.min(last, next));
    choose(at);
  });
  element.addEventListener("blur", hide);
}

function attachPlot(plot) {
  const points = () => JSON.parse(plot.dataset.hover), cursor = () => plot.querySelector(".cursor");
  const hide = () => { tip.hidden = true; cursor().setAttribute("visibility", "hidden"); };
  const choose = (point, clientX, clientY) => {
    if (!point) return;
    const line = cursor().querySelector("line"), dot = cursor().querySelector("circle");
    cursor().setAttribute("visibility", "visible");
    line.setAttribute("x1", point[0]); line.setAttribute("x2", point[0]);
    dot.setAttribute("cx", point[0]); dot.setAttribute("cy", point[1]);
    show(point[2], clientX, clientY);
  };
  const pointed = event => {
    const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) * plot.viewBox.baseVal.width / box.width;
    const nearest = (best, point) => Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best;
    choose(points().reduce(nearest, points()[0]), event.clientX, event.clientY);
  };
  plot.addEventListener("pointermove", pointed);
  plot.addEventListener("pointerdown", pointed);
  plot.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hide(); });
  readKeys(plot, () => points().length, at => {
    const box = plot.getBoundingClientRect(), scale = box.width / plot.viewBox.baseVal.width;
    choose(points()[at], box.left + points()[at][0] * scale, box.top + points()[at][1] * scale);
  }, hide);
}

function attachTimeline(chart) {
  const bars = () => [...chart.querySelectorAll("rect")].filter(bar => bar.querySelector("title"));
  const hide = () => { tip.hidden = true; };
  const choose = bar => { const box = bar.getBoundingClientRect(); show(bar.querySelector("title").textContent, box.left, box.top); };
  chart.addEventListener("pointerdown", event => { const bar = event.target.closest("rect"); if (bars().includes(bar)) choose(bar); });
  readKeys(chart, () => bars().length, at => choose(bars()[at]), hide);
}

function attach(root) {
  for (const chart of root.querySelectorAll("svg.plot, svg.timeline")) {
    if (attached.has(chart)) continue;
    attached.add(chart);
    if (chart.matches(".plot")) attachPlot(chart); else attachTimeline(chart);
  }
}

attach(document);
