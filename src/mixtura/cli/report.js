// Shows the details of a row under the pointer. All texts are set as text, so that nothing in them is HTML.
(function () {
  var samples = JSON.parse(document.getElementById('samples').textContent);
  var box = document.getElementById('detail');
  var points = Array.from(document.querySelectorAll('#rows [id^=class-] use'));  // in the order of the samples
  var at = -1;

  function add(parent, tag, text) {
    var part = document.createElement(tag);
    if (text !== undefined) part.textContent = text;
    parent.appendChild(part);
    return part;
  }

  function addReasons(sample) {
    add(box, 'h4', sample.why);
    var largest = Math.max.apply(null, sample.reasons.map(function (reason) { return Math.abs(reason[1]); })) || 1;
    var table = add(box, 'table');
    sample.reasons.forEach(function (reason) {
      var row = add(table, 'tr'), size = Math.abs(reason[1]), negative = reason[1] < 0;
      add(row, 'td', reason[0]);
      var cell = add(row, 'td');
      cell.className = 'text';
      var bar = add(cell, 'i');
      bar.className = negative ? 'bar against' : 'bar';
      bar.style.width = (4 * size / largest) + 'rem';
      add(row, 'td', (negative ? '\u2212' : '+') + size.toFixed(2));
    });
  }

  function show(number) {
    var sample = samples[number];
    points.forEach(function (point, place) { point.classList.toggle('on', place === number); });
    at = number;
    box.textContent = '';
    add(box, 'h3', 'Row ' + sample.row + ': ' + sample.label);
    sample.lines.forEach(function (line) { add(box, 'p', line); });
    if (sample.reasons.length) addReasons(sample);
    add(box, 'h4', 'Values');
    var table = add(box, 'table');
    sample.values.forEach(function (pair) {
      var row = add(table, 'tr');
      add(row, 'td', pair[0]);
      add(row, 'td', pair[1]);
    });
    if (sample.more) add(box, 'p', sample.more);
  }

  points.forEach(function (point, number) {
    ['mouseenter', 'click'].forEach(function (name) {
      point.addEventListener(name, function () { show(number); });
    });
  });
  document.querySelectorAll('button[data-sample]').forEach(function (button) {
    button.addEventListener('click', function () {
      show(Number(button.dataset.sample));
      box.parentNode.scrollIntoView();
    });
  });
  var plane = document.getElementById('rows');
  if (plane && points.length) plane.addEventListener('keydown', function (event) {
    var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show((at + step + points.length) % points.length);
  });
})();
