"""Templates: the HTML of steps, hits and contexts, and its style.

Strings in a module, so that a notebook needs no file beside the code. Colours are mixed from the
page's own text colour, with one restrained tint per step type, so nothing here asks which theme is
on. Every value goes through jinja2's autoescape; none stands in an unquoted attribute, a style, a
script or an address. jinja2 is loaded when something is shown.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

STYLE = Markup("""<style>
.hs{--hs-line:rgba(128,128,128,.26);--hs-soft:rgba(128,128,128,.09);font:13px/1.5 system-ui,\
-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;color:inherit;max-width:1100px;\
margin:4px 0 12px;text-align:left}
.hs *{box-sizing:border-box}
.hs-head{font-weight:600;margin:0 0 6px}
.hs-list{border:1px solid var(--hs-line);border-radius:8px;overflow:hidden}
.hs details{margin:0}
.hs summary{display:flex;align-items:baseline;gap:8px;padding:5px 12px;cursor:pointer;\
list-style:none;min-width:0}
.hs summary::-webkit-details-marker{display:none}
.hs summary:hover{background:var(--hs-soft)}
.hs summary:focus-visible{outline:2px solid #4c8dff;outline-offset:-2px}
.hs-step+.hs-step,.hs-inside>.hs-step,.hs-hit+.hs-hit{border-top:1px solid var(--hs-line)}
.hs-mark{flex:none;width:9px;opacity:.55;transition:transform .12s}
details[open]>summary>.hs-mark{transform:rotate(90deg)}
.hs-hop{flex:none;min-width:1.6em;text-align:right;opacity:.55;\
font-variant-numeric:tabular-nums}
.hs-chip{flex:none;font-size:11px;line-height:17px;padding:0 7px;border-radius:9px;\
background:rgba(128,128,128,.18)}
.hs-action{background:rgba(56,132,255,.2)}
.hs-decision{background:rgba(168,102,255,.22)}
.hs-call{background:rgba(22,163,116,.22)}
.hs-end{background:rgba(22,163,116,.12)}
.hs .hs-bad{background:rgba(229,72,77,.24);font-weight:600}
.hs-title{flex:0 1 auto;font-weight:600;white-space:nowrap;overflow:hidden;\
text-overflow:ellipsis;max-width:62%}
.hs-about{flex:0 1 auto;min-width:0;max-width:50%;white-space:nowrap;overflow:hidden;\
text-overflow:ellipsis}
.hs-rest{flex:1 1 0;min-width:0;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;\
opacity:.68}
.hs-facts{flex:none;opacity:.62;font-size:12px;font-variant-numeric:tabular-nums;\
white-space:nowrap}
.hs-body{padding:2px 12px 10px 48px}
.hs-name{font-size:11px;letter-spacing:.03em;opacity:.6;margin:6px 0 2px}
.hs .hs-text{margin:0;padding:7px 10px;border-radius:6px;background:var(--hs-soft);color:inherit;\
font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre-wrap;\
overflow-wrap:anywhere;max-height:22em;overflow:auto}
.hs-inside{margin-left:22px;border-left:1px solid var(--hs-line)}
.hs-inside .hs-body{padding-left:40px}
.hs-more{padding:6px 12px;opacity:.65}
.hs-hit{padding:7px 0 4px}
.hs-rank{display:flex;align-items:center;gap:8px;padding:0 12px;font-size:12px;\
font-variant-numeric:tabular-nums}
.hs-rank b{min-width:1.6em;text-align:right;font-weight:600}
.hs-bar{flex:none;width:90px;height:6px;border-radius:3px;background:rgba(128,128,128,.2);\
overflow:hidden}
.hs-bar i{display:block;height:6px;border-radius:3px;background:#4c8dff}
.hs-why{opacity:.68;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;flex:1 1 0;\
min-width:0}
.hs-around{margin:0 0 2px 22px}
.hs-around>summary{font-size:12px;opacity:.75}
</style>""")

_MACROS = """
{% macro row(node) %}
<summary>
<span class="hs-mark" aria-hidden="true">›</span>
<span class="hs-hop">{{ node.hop }}</span>
<span class="hs-chip hs-{{ node.style }}">{{ node.kind }}</span>
{% if node.status %}<span class="hs-chip hs-bad">{{ node.status }}</span>{% endif %}

{% if node.title %}<span class="hs-title">{{ node.title }}</span>{% endif %}

{% if node.about %}<span class="hs-about">{{ node.about }}</span>{% endif %}

<span class="hs-rest">
{%- if node.outcome %}→ {{ node.outcome }}{% endif -%}
</span>
{% if node.after %}<span class="hs-facts">{{ node.after }}</span>{% endif %}

{% if node.facts %}<span class="hs-facts">{{ node.facts | join(" · ") }}</span>{% endif %}

</summary>
{% endmacro %}

{% macro details(node) %}
{% if node.sections %}
<div class="hs-body">
{% for name, text in node.sections %}
<div class="hs-name">{{ name }}</div>
<pre class="hs-text">{{ text }}</pre>
{% endfor %}
</div>
{% endif %}
{% endmacro %}

{% macro tree(nodes, opened) %}
{% for node in nodes %}
<div class="hs-step">
{% if node.children %}
<details open>
{{ row(node) }}
<div class="hs-inside">
{% if node.sections %}<details><summary><span class="hs-mark" aria-hidden="true">›</span>
<span class="hs-rest">inputs and outputs</span></summary>
{{ details(node) }}
</details>{% endif %}

{{ tree(node.children, false) }}
</div>
</details>
{% else %}
<details{{ " open" if opened }}>
{{ row(node) }}
{{ details(node) }}
</details>
{% endif %}
</div>
{% endfor %}
{% endmacro %}

{% macro more(hidden) %}
{% if hidden %}<div class="hs-more">… and {{ "{:,}".format(hidden) }} more</div>{% endif %}
{% endmacro %}
"""

_STEP = """{% import "macros" as show %}
{{ style }}
<div class="hs">
{% if title %}<div class="hs-head">{{ title }}</div>{% endif %}

{% if nodes %}
<div class="hs-list">
{{ show.tree(nodes, opened) }}
{{ show.more(hidden) }}
</div>
{% endif %}
</div>
"""

_HITS = """{% import "macros" as show %}
{{ style }}
<div class="hs">
<div class="hs-head">{{ title }}</div>
{% if hits %}
<div class="hs-list">
{% for hit in hits %}
<div class="hs-hit">
<div class="hs-rank"><b>{{ hit.rank }}</b>
<span class="hs-bar" title="score {{ hit.score }}">
<i style="width:{{ hit.percent | int }}%"></i></span>
<span>{{ hit.score }}</span>
<span class="hs-why" title="{{ hit.parts }}">{{ hit.why }}</span>
{% if hit.parts %}<span class="hs-facts">{{ hit.parts }}</span>{% endif %}

</div>
{{ show.tree([hit.step], false) }}
{% if hit.context %}
<details class="hs-around"><summary><span class="hs-mark" aria-hidden="true">›</span>
{{ hit.context | length }} around it</summary>
<div class="hs-inside">{{ show.tree(hit.context, false) }}</div>
</details>
{% endif %}
</div>
{% endfor %}
{{ show.more(hidden) }}
</div>
{% endif %}
</div>
"""

_CONTEXT = """{% import "macros" as show %}
{{ style }}
<div class="hs">
<div class="hs-head">{{ title }}</div>
{% if messages %}
<div class="hs-list">
{% for message in messages %}
<div class="hs-step"><details><summary>
<span class="hs-mark" aria-hidden="true">›</span>
<span class="hs-chip hs-{{ message.style }}">{{ message.role }}</span>
<span class="hs-rest">{{ message.line }}</span>
</summary><div class="hs-body"><pre class="hs-text">{{ message.text }}</pre></div></details></div>
{% endfor %}
</div>
{% endif %}
{% for name, entries, hidden in sections %}
<details class="hs-around"{{ " open" if loop.first and not messages }}><summary>
<span class="hs-mark" aria-hidden="true">›</span>{{ name }}</summary>
{% for entry in entries %}
<div class="hs-rank"><span class="hs-title">{{ entry.id }}</span>
<span class="hs-why" title="{{ entry.why }}">{{ entry.why }}</span>
<span class="hs-facts">{{ "{:,}".format(entry.tokens) }}</span></div>
{% endfor %}
{{ show.more(hidden) }}
</details>
{% endfor %}
{% for note in notes %}<div class="hs-more">{{ note }}</div>
{% endfor %}
</div>
"""

_RUNS = """{% import "macros" as show %}
{{ style }}
<div class="hs">
<div class="hs-head">{{ title }}</div>
{% if runs %}
<div class="hs-list">
{% for run in runs %}
<div class="hs-rank">
<span class="hs-title">{{ run.title or run.id }}</span>
{% if run.status %}<span class="hs-chip{{ " hs-bad" if run.status == "failed" }}">\
{{ run.status }}</span>{% endif %}

{% if run.errors %}<span class="hs-chip hs-bad">{{ run.errors }}</span>{% endif %}

<span class="hs-why">{{ run.id }}</span>
<span class="hs-facts">{{ run.facts }}</span>
</div>
{% endfor %}
{{ show.more(hidden) }}
</div>
{% endif %}
</div>
"""

TEMPLATES = {
    "macros": _MACROS,
    "step": _STEP,
    "hits": _HITS,
    "runs": _RUNS,
    "context": _CONTEXT,
}
"""Name → template source."""


def render(name: str, **values: object) -> str:
    """Return a template's HTML; every value is escaped."""
    html = _environment().get_template(name).render(**values)
    return html.encode("utf-8", "replace").decode()  # a notebook cannot store lone surrogates


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import DictLoader, Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=DictLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = STYLE  # pyright: ignore[reportArgumentType]
    return environment
