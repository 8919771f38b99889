// Zoom and readout of the crash page. The page is whole without them.
(function () {
  "use strict";
  Array.prototype.forEach.call(document.querySelectorAll(".copy"), function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      var text = button.parentNode.querySelector("pre").textContent, area = document.createElement("textarea");
      area.value = text; area.className = "away"; document.body.appendChild(area); area.select();
      var done = false;
      try { done = document.execCommand("copy"); } catch (error) { done = false; }
      area.remove(); button.focus();
      button.textContent = done ? "Copied" : "Select it and copy";
      setTimeout(function () { button.textContent = "Copy"; }, 2000);
    });
  });
  var chart = document.getElementById("chart"), source = document.getElementById("samples");
  if (!chart || !source) return;
  var data = JSON.parse(source.textContent), begin = +chart.dataset.begin, narrow = +chart.dataset.window;
  var scale = +chart.dataset.scale, clock = +chart.dataset.clock, from = narrow, to = 0;
  var zones = JSON.parse(chart.dataset.zones);  // since when, seconds from UTC, name: several where clocks were changed
  var all = function (query) { return Array.prototype.slice.call(chart.querySelectorAll(query)); };
  var readout = chart.querySelector(".readout"), about = chart.querySelector(".about");
  var steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800];
  var units = [["TiB", Math.pow(2, 40), 1], ["GiB", Math.pow(2, 30), 1], ["MiB", Math.pow(2, 20), 0], ["KiB", 1024, 0]];

  function size(bytes) {
    for (var i = 0; i < units.length; i++)
      if (bytes >= units[i][1]) return (bytes / units[i][1]).toFixed(units[i][2]) + " " + units[i][0];
    return bytes + " B";
  }
  function span(seconds) {
    if (seconds < 90) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
    return seconds < 5400 ? Math.round(seconds / 60) + " min" : (seconds / 3600).toFixed(1) + " h";
  }
  function zone(t) { return zones.filter(function (span, i) { return !i || span[0] <= t; }).pop(); }
  function at(t, first, last) {
    var text = new Date((clock + zone(t)[1] + t) * 1000).toISOString();
    return text.slice(first === undefined ? 11 : first, last === undefined ? 19 : last);
  }
  function percent(t) { return 100 * (t - from) / (to - from); }

  function draw() {
    all("svg.zoom").forEach(function (svg) {
      svg.setAttribute("viewBox", from * scale + " 0 " + (to - from) * scale + " 1000");
    });
    all(".phase").forEach(function (cell) {
      var left = Math.max(0, percent(+cell.dataset.t)), right = Math.min(100, percent(+cell.dataset.u));
      cell.hidden = right <= left;
      cell.style.left = left + "%"; cell.style.width = right - left + "%";
    });
    all(".events li").forEach(function (row) {
      var t = +row.dataset.t;
      row.classList.toggle("away", t < from || t > to);
    });
    all(".tag.end").forEach(function (tag) { tag.hidden = to < 0; });
    all(".tag.growth").forEach(function (tag) { tag.hidden = from > narrow; });
    marks(); axis();
    var window_ = chart.querySelector(".overview .window");
    if (window_) {
      window_.style.left = 100 * (from - begin) / -begin + "%";
      window_.style.right = 100 * -to / -begin + "%";
    }
    about.textContent = from <= begin && to >= 0 ? "The whole run, " + span(-begin)
      : from === -600 && to === 0 ? "The last ten minutes" : at(from) + " to " + at(to) + ", " + span(to - from);
  }
  function marks() {
    var area = chart.querySelector(".plot .area"), last = null, label = null, first = 0;
    all(".mark").forEach(function (mark) { mark.remove(); });
    data.events.forEach(function (t, index) {
      var left = percent(t);
      if (left < 0 || left > 100) return;
      if (last !== null && left - last < 5) { label.textContent = first + "–" + (index + 1); return; }
      label = document.createElement("span");
      label.className = "mark"; label.textContent = first = index + 1; label.style.left = left + "%";
      area.appendChild(label); last = left;
    });
  }
  function axis() {
    var area = chart.querySelector(".axis .area"), length = to - from, step = steps[steps.length - 1];
    for (var i = 0; i < steps.length; i++) if (length / steps[i] <= 6) { step = steps[i]; break; }
    area.textContent = "";
    var places = [], several = zone(from) !== zone(to);
    zones.forEach(function (span, i) {
      var local = clock + span[1], end = i + 1 < zones.length ? Math.min(to + 2e-6, zones[i + 1][0]) : to + 2e-6, first = several;
      for (var t = Math.ceil((local + Math.max(from, span[0])) / step) * step - local; t < end - 1e-6; t += step) {
        while (places.length && t - places[places.length - 1][0] < 0.6 * step) places.pop();
        places.push([t, first ? span[2] : ""]); first = false;
      }
    });
    places.forEach(function (place) {
      var label = document.createElement("span"), t = place[0];
      label.textContent = step < 1 ? at(t + 1e-4, 11, 21) : step < 60 ? at(t + 1e-3) : step < 86400 ? at(t + 1e-3, 11, 16) : at(t + 1e-3, 5, 10);
      label.style.left = percent(t) + "%";
      if (percent(t) > 92) label.style.transform = "translateX(-100%)";
      if (place[1]) {
        label.className = "zone"; label.appendChild(document.createElement("br"));
        label.appendChild(document.createTextNode(place[1]));
      }
      area.appendChild(label);
    });
  }
  function show(a, b) {
    var least = Math.min(1, -begin);
    if (b - a < least) { var middle = (a + b) / 2; a = middle - least / 2; b = middle + least / 2; }
    from = Math.max(begin, a); to = Math.min(0, b); draw();
  }
  function nearest(rows, t) {
    var low = 0, high = rows.length - 1;
    while (low < high) { var middle = (low + high) >> 1; if (rows[middle][0] < t) low = middle + 1; else high = middle; }
    return low && t - rows[low - 1][0] < rows[low][0] - t ? rows[low - 1] : rows[low];
  }
  function read(t) {
    var words = [at(t)];
    if (data.host.length) {
      var row = nearest(data.host, t), names = Object.keys(data.layers), sum = 0;
      words[0] = at(row[0]);
      for (var i = 1; i < 6; i++) sum += row[i];
      words.push("job " + size(sum));
      names.forEach(function (name, i) { if (row[i + 1]) words.push(name + " " + size(row[i + 1])); });
    }
    Object.keys(data.gpus).forEach(function (index) {
      var row = nearest(data.gpus[index], t);
      words.push("GPU " + index + ": " + (row[3] === null ? "" : "job " + size(row[3]) + ", ") + "free " + size(row[2] - row[1]));
    });
    var phase = null;
    data.phases.forEach(function (one) { if (one[0] <= t) phase = one; });
    if (phase) words.push(phase[1] + (phase[2] === null ? "" : " to step " + phase[2]));
    if (zones.length > 1) words[0] += " " + zone(t)[2];
    readout.textContent = words.join("  ·  ");
  }

  function follow(area, left, right, whole) {
    var start = null, box = null;
    function time(event) {
      var rect = area.getBoundingClientRect();
      var share = Math.min(1, Math.max(0, (event.clientX - rect.left) / rect.width));
      return left() + share * (right() - left());
    }
    area.addEventListener("pointermove", function (event) {
      var now = time(event);
      if (!whole) {
        read(now);
        all(".hair").forEach(function (hair) { hair.hidden = false; hair.style.left = percent(now) + "%"; });
      }
      if (start !== null && box) {
        var a = 100 * (Math.min(start, now) - left()) / (right() - left());
        box.style.left = a + "%"; box.style.width = 100 * Math.abs(now - start) / (right() - left()) + "%";
      }
    });
    area.addEventListener("pointerdown", function (event) {
      if (event.button) return;
      start = time(event);
      box = document.createElement("div"); box.className = "selection"; box.style.left = "-1px"; box.style.width = "0";
      area.appendChild(box); area.setPointerCapture(event.pointerId); event.preventDefault();
    });
    function done(event) {
      if (start === null) return;
      var now = time(event), a = Math.min(start, now), b = Math.max(start, now);
      start = null; box.remove(); box = null;
      if (event.type === "pointerup" && b - a > (right() - left()) / 100) show(a, b);
    }
    area.addEventListener("pointerup", done);
    area.addEventListener("pointercancel", done);
    area.addEventListener("pointerleave", function () { all(".hair").forEach(function (hair) { hair.hidden = true; }); });
    area.addEventListener("dblclick", function () { show(narrow, 0); });
  }
  all(".plot .area").forEach(function (area) {
    var hair = document.createElement("div");
    hair.className = "hair"; hair.hidden = true; area.appendChild(hair);
    follow(area, function () { return from; }, function () { return to; }, false);
  });
  all(".overview .area").forEach(function (area) {
    follow(area, function () { return begin; }, function () { return 0; }, true);
  });
  all("[data-show]").forEach(function (button) {
    button.addEventListener("click", function () { show(button.dataset.show === "all" ? begin : narrow, 0); });
  });
  chart.tabIndex = 0;
  chart.addEventListener("keydown", function (event) {
    var length = to - from, keys = {ArrowLeft: -0.2, ArrowRight: 0.2}, way = keys[event.key];
    if (event.target !== chart || event.ctrlKey || event.altKey || event.metaKey) return;
    if (way) way = Math.min(-to, Math.max(begin - from, way * length)), show(from + way, to + way);
    else if (event.key === "+") show(from + length / 4, to - length / 4);
    else if (event.key === "-") show(from - length / 2, to + length / 2);
    else if (event.key === "0" || event.key === "Escape") show(narrow, 0);
    else return;
    event.preventDefault();
  });
  chart.querySelector(".controls").hidden = false;
})();
