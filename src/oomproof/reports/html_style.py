"""The crash page's style: light and dark, 360 px and paper."""

STYLE = """
:root{color-scheme:light dark;--paper:#fbfaf7;--card:#fff;--ink:#23272c;--soft:#5d6570;--line:#e3e0d9;--grid:#ece9e2;
--bad:#a8352a;--badsoft:#f7e6e2;--ours:#8a5a0b;--ourssoft:#f6ecd8;--good:#2b6e47;--goodsoft:#e2f0e6;
--main:#3f6f9f;--workers:#86abc9;--other:#b9c6cb;--shared:#8e7cb3;--swap:#cf8a5b;--cache:#e2ddd0;--job:#3f7f74;--others:#c3c9c2;
--p0:#dbe6ef;--p1:#e6dfef;--p2:#e0ecdf;--p3:#f3e6d6;--p4:#eadfdf}
@media (prefers-color-scheme:dark){:root{--paper:#16181b;--card:#1d2024;--ink:#e4e2dd;--soft:#9aa2ab;--line:#32363c;--grid:#2a2e33;
--bad:#ec8a7c;--badsoft:#3a2220;--ours:#e2b469;--ourssoft:#352a17;--good:#85c79c;--goodsoft:#1c3325;
--main:#5d93c7;--workers:#3d6385;--other:#4d5a61;--shared:#8673b8;--swap:#c27b4c;--cache:#3a3831;--job:#4f9c8f;--others:#4a514c;
--p0:#263644;--p1:#332b42;--p2:#263828;--p3:#40321f;--p4:#402b2b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;overflow-wrap:anywhere}.whole{white-space:nowrap}
main{min-width:0;max-width:62rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.5rem;line-height:1.3;margin:.35rem 0 0;font-weight:650;text-wrap:balance}
h2{font-size:1.05rem;margin:0 0 .8rem;font-weight:650}
p{margin:.4rem 0}
code,pre,.mono{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,"Liberation Mono",monospace;overflow-wrap:anywhere}
pre{margin:.35rem 0;padding:.6rem .75rem;background:var(--paper);border:1px solid var(--line);border-radius:6px;white-space:pre-wrap}
header .eyebrow{color:var(--soft);font-size:.85rem;margin:0}
.verdict{border-left:4px solid var(--tone);padding:.1rem 0 .1rem 1.1rem;margin:.9rem 0 1.6rem}
.bad{--tone:var(--bad);--tonesoft:var(--badsoft)}.ours{--tone:var(--ours);--tonesoft:var(--ourssoft)}
.good{--tone:var(--good);--tonesoft:var(--goodsoft)}
.badge{display:inline-block;background:var(--tonesoft);color:var(--tone);border-radius:99px;padding:.05rem .6rem;font-size:.8rem;font-weight:600}
.lines{display:grid;grid-template-columns:max-content 1fr;gap:.35rem .8rem;margin:.9rem 0 0}
.lines dt{color:var(--soft)}.lines dd{margin:0;overflow-wrap:anywhere}
section,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1.1rem 1.25rem;margin:0 0 1.1rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.8rem 1.4rem}
.facts div{min-width:0}.facts .wide{grid-column:1/-1}
.facts dt{color:var(--soft);font-size:.8rem}.facts dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-size:.92rem}
.scroll{overflow-x:auto}
th{font-weight:500;color:var(--soft);text-align:left;font-size:.8rem}
td{overflow-wrap:anywhere}td:first-child,.facts dd{min-width:4rem}#chart:focus-visible{outline:2px solid var(--main);outline-offset:4px}
.away{position:fixed;left:-99rem}
th,td{padding:.34rem .9rem .34rem 0;border-bottom:1px solid var(--grid);vertical-align:top}
tr:last-child td{border-bottom:0}
table.pairs td:first-child{color:var(--soft);width:34%;min-width:7rem}
.processes td:first-child{min-width:7rem}
td.k,th{white-space:nowrap}.causes td:nth-child(2){overflow-wrap:normal}.scroll td:not(.k):not(.n){min-width:6.5rem}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.bar{display:block;height:4px;border-radius:2px;background:var(--main);margin-top:.3rem;min-width:1px}
.note{color:var(--soft);font-size:.85rem}
figure{margin:0}
.about{color:var(--soft);font-size:.85rem;margin:0 0 .3rem}
.controls{float:right;font-size:.8rem}.controls[hidden]{display:none}
button{font:inherit;color:var(--ink);background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.12rem .6rem;margin-right:.35rem;cursor:pointer}
button:hover{border-color:var(--soft)}button:focus-visible{outline:2px solid var(--main)}
.hint{color:var(--soft)}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;align-items:baseline;font-size:.85rem;margin:.9rem 0 .45rem;clear:both}
.legend b{font-weight:600}
.legend ul{display:flex;flex-wrap:wrap;gap:.1rem .9rem;list-style:none;margin:0;padding:0;color:var(--soft)}
.legend li::before{content:"";display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.4em;background:var(--c)}
.legend .main{--c:var(--main)}.legend .workers{--c:var(--workers)}.legend .other{--c:var(--other)}.legend .shared{--c:var(--shared)}
.legend .swap{--c:var(--swap)}.legend .cache{--c:var(--cache)}.legend .job{--c:var(--job)}.legend .others{--c:var(--others)}
.legend .free{--c:transparent}.legend .free::before{border:1px solid var(--soft)}
.plot,.axis,.phases{display:grid;grid-template-columns:4.2rem 1fr}
.plot .area{position:relative;height:15rem;border-bottom:1px solid var(--soft);touch-action:pan-y;cursor:crosshair}
.plot.gpu .area,.plot.machine .area{height:9rem}.plot.strip .area{height:3rem}.small .plot .area{height:6rem}
.plot svg,.overview svg{display:block;width:100%;height:100%;overflow:hidden}
.sizes{position:relative;font-size:.75rem;color:var(--soft)}
.sizes span{position:absolute;right:.5rem;transform:translateY(50%);white-space:nowrap}
svg .main{fill:var(--main)}svg .workers{fill:var(--workers)}svg .other{fill:var(--other)}svg .shared{fill:var(--shared)}
svg .u0,svg .u1,svg .u2{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}svg .u0{stroke:var(--bad)}svg .u1{stroke:var(--ours)}svg .u2{stroke:var(--shared)}
.legend .u0{--c:var(--bad)}.legend .u1{--c:var(--ours)}.legend .u2{--c:var(--shared)}svg .pressure{fill:var(--bad)}svg .swap{fill:var(--swap)}svg .cache{fill:var(--cache)}svg .job{fill:var(--job)}svg .others{fill:var(--others)}
line{vector-effect:non-scaling-stroke}
.grid{stroke:var(--grid);stroke-width:1}
line.limit{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:5 4}
.tag{position:absolute;left:.3rem;font-size:.75rem;color:var(--bad);background:var(--card);padding:0 .3rem;border-radius:3px;transform:translateY(50%)}
line.growth{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:1 4;stroke-linecap:round}line.end{stroke:var(--tone,var(--bad));stroke-width:2}
.tag.growth{left:.3rem;bottom:50%;color:var(--ink);border:1px solid var(--line)}.tag.end{left:auto;right:.3rem;bottom:4%;transform:none}.tag[hidden]{display:none}
.event{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
.event.warn,.event.alert,.event.request{stroke:var(--ours)}.event.term,.event.kill{stroke:var(--bad)}
.mark{position:absolute;top:-.1rem;transform:translateX(-50%);min-width:1.3em;text-align:center;font-size:.7rem;line-height:1.35;
background:var(--card);border:1px solid var(--soft);border-radius:99px;padding:0 .3em;white-space:nowrap}
.axis .area{grid-column:2;position:relative;height:1.5rem;font-size:.75rem;color:var(--soft)}
.axis span{position:absolute;top:.25rem;transform:translateX(-50%);white-space:nowrap;text-align:center}.axis.zones .area{height:2.6rem}
.phases .area{position:relative;height:1.35rem;margin-top:3px}
.phases::before{content:"phase";font-size:.75rem;color:var(--soft);text-align:right;padding-right:.5rem;margin-top:3px}
.phase{position:absolute;top:0;bottom:0;overflow:hidden;white-space:nowrap;font-size:.72rem;line-height:1.35rem;padding:0 .25rem;border-right:1px solid var(--card)}
.phase i{font-style:normal;color:var(--soft)}.phase[hidden],.mark[hidden]{display:none}
.p0{background:var(--p0)}.p1{background:var(--p1)}.p2{background:var(--p2)}.p3{background:var(--p3)}.p4{background:var(--p4)}
.overview{margin:.8rem 0 0 4.2rem}
.overview .area{position:relative;height:2.6rem;border-bottom:1px solid var(--line);touch-action:pan-y;cursor:crosshair}
.overview svg .main{fill:var(--other)}
.window{position:absolute;top:0;bottom:0;min-width:3px;background:color-mix(in srgb,var(--main) 22%,transparent);border:solid var(--main);border-width:0 1px;pointer-events:none}
.selection{position:absolute;top:0;bottom:0;background:color-mix(in srgb,var(--main) 25%,transparent);pointer-events:none}
.hair{position:absolute;top:0;bottom:0;width:1px;background:var(--ink);opacity:.5;pointer-events:none}.hair[hidden]{display:none}
.readout{min-height:1.4em;font-size:.82rem;color:var(--soft);font-variant-numeric:tabular-nums;margin:.5rem 0 0}
.readout:empty{display:none}
.events{margin:.8rem 0 0;padding-left:1.6rem;font-size:.88rem}.events li{padding:.1rem 0}.events li.away{opacity:.5}
.events time,.when{color:var(--soft);font-variant-numeric:tabular-nums}
.events b{font-weight:600}.events .warn,.events .alert,.events .request,.events .pause,.events .resume{color:var(--ours)}.events .term,.events .kill{color:var(--bad)}
.card-bar{display:flex;height:1.5rem;border-radius:5px;overflow:hidden;border:1px solid var(--line)}

details{margin:.7rem 0 0}summary{cursor:pointer;color:var(--soft);font-size:.9rem}summary:focus-visible{outline:2px solid var(--main);outline-offset:2px}
details[open]>summary{margin-bottom:.5rem}section>details:only-of-type:first-of-type{margin-top:0}
.command{display:flex;align-items:flex-start;gap:.5rem}.command pre{flex:1;min-width:0}.copy{flex:none;margin:.5rem 0 0;font-size:.8rem}.copy[hidden]{display:none}
.headline{font-weight:500}
.stack{padding-left:1.5rem;margin:.4rem 0 0;font-size:.9rem}.stack li{margin:0 0 .5rem}.stack .library{color:var(--soft)}.stack b{font-weight:600}
.stack .file{font:.92em ui-monospace,SFMono-Regular,Menlo,"Liberation Mono",monospace}
.source{padding:.4rem 0;overflow-x:auto}.line{display:block;padding:0 .75rem;white-space:pre;min-width:max-content}.line i{display:inline-block;width:3.2em;font-style:normal;color:var(--soft);user-select:none}
.line.here{background:var(--badsoft);font-weight:600}
.log{max-height:28rem;overflow:auto}
.keys{margin:.5rem 0 .4rem}.keys .reserved{--c:var(--swap)}
.card-bar span{min-width:1px}.card-bar .job{background:var(--job)}.card-bar .reserved{background:var(--swap)}.card-bar .others{background:var(--others)}
table.processes td:nth-child(2),table.processes th:nth-child(2){white-space:nowrap}
ol.remedies,ul.plain{padding-left:1.3rem;margin:0}
ol.remedies>li,ul.plain>li{margin:0 0 .75rem}
.basis{color:var(--soft);font-size:.82rem}
.evidence{list-style:none;padding:0;margin:0}
.evidence li{padding:.55rem 0;border-bottom:1px solid var(--grid)}.evidence li:last-child{border:0}
.evidence .source{font-size:.82rem;color:var(--soft)}
.evidence .says{color:var(--soft);font-size:.9rem}
footer{color:var(--soft);font-size:.82rem;margin-top:1.6rem}
@media (max-width:560px){body{font-size:15px}main{padding:1.1rem .8rem 2.5rem}section,.card{padding:.9rem .85rem}h1{font-size:1.22rem}
.plot,.axis,.phases{grid-template-columns:3.5rem 1fr}.overview{margin-left:3.5rem}.plot .area{height:12rem}.axis span:nth-child(even):not(.zone){display:none}
.hint{display:none}.facts{grid-template-columns:1fr 1fr}.lines{grid-template-columns:1fr;gap:.05rem}.lines dd{margin-bottom:.5rem}
.sizes{font-size:.68rem}.optional{display:none}th,td{padding-right:.6rem}}
@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#111;--soft:#555;--line:#ccc;--grid:#e5e5e5;--bad:#a8352a;--badsoft:#f7e6e2;
--ours:#8a5a0b;--ourssoft:#f6ecd8;--good:#2b6e47;--goodsoft:#e2f0e6;--main:#3f6f9f;--workers:#86abc9;--other:#b9c6cb;--shared:#8e7cb3;--swap:#cf8a5b;
--cache:#e2ddd0;--job:#3f7f74;--others:#c3c9c2;--p0:#dbe6ef;--p1:#e6dfef;--p2:#e0ecdf;--p3:#f3e6d6;--p4:#eadfdf}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}body{font-size:10.5pt}main{max-width:none;padding:0}
@page{margin:14mm}section,.card{border-color:#ddd;padding:.7rem .9rem}h2,.legend,.says{break-after:avoid}
.card,.legend,.plot,.axis,.phases,.command,tr,li:not(:has(pre)),.source,.verdict{break-inside:avoid}.controls,.readout,.copy{display:none!important}details:not([open])>summary::after{content:" (folded)"}.log{max-height:none}.plot .area{height:11rem}}
"""
