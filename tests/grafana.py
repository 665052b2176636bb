"""Grafana's model of a dashboard (schema version 41), as far as ours use it: unknown fields are refused.

The names and values are those of Grafana 12 (``kinds/dashboard`` in its source). Grafana itself ignores what
it does not know, so that a misspelt field would only show as a panel that looks odd.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]
Unit = Literal["short", "s", "percentunit", "bytes", "ops", "reqps"]
Color = Literal["green", "yellow", "red", "blue"]


class Model(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    """Every field is known."""


class Source(Model):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class Place(Model):
    x: Annotated[int, Meta(ge=0, lt=24)]
    y: Annotated[int, Meta(ge=0)]
    w: Annotated[int, Meta(gt=0, le=24)]
    h: Annotated[int, Meta(gt=0)]


class Target(Model):
    ref_id: Annotated[str, Meta(pattern="^[A-Z]$")]
    datasource: Source
    expr: Text
    legend_format: Text
    range: bool
    instant: bool
    format: Literal["time_series", "table"]
    editor_mode: Literal["code"]


class Step(Model):
    color: Color
    value: float | None


class Thresholds(Model):
    mode: Literal["absolute"]
    steps: Annotated[list[Step], Meta(min_length=1)]


class DataLink(Model):
    title: Text
    url: Text
    target_blank: bool


class Result(Model):
    text: Text
    color: Color
    index: int


class Mapping(Model):
    type: Literal["value"]
    options: dict[str, Result]


class ColorMode(Model):
    mode: Literal["thresholds", "palette-classic"]


class Stacking(Model):
    mode: Literal["none", "normal"]
    group: str


class ThresholdsStyle(Model):
    mode: Literal["off", "line"]


class Custom(Model):
    """What only graphs and timelines have."""

    draw_style: Literal["line"] = "line"
    line_interpolation: Literal["linear", "stepAfter"] = "linear"
    line_width: int = 1
    fill_opacity: Annotated[int, Meta(ge=0, le=100)] = 0
    show_points: Literal["never"] = "never"
    span_nulls: bool = False
    stacking: Stacking | None = None
    thresholds_style: ThresholdsStyle | None = None
    axis_soft_min: float = 0


class Defaults(Model):
    unit: Unit
    min: float
    thresholds: Thresholds
    color: ColorMode
    mappings: list[Mapping]
    links: list[DataLink]
    custom: Custom


class Matcher(Model):
    id: Literal["byName"]
    options: Text


class Property(Model):
    id: Literal["displayName", "links"]
    value: str | list[DataLink]


class Override(Model):
    matcher: Matcher
    properties: list[Property]


class FieldConfig(Model):
    defaults: Defaults
    overrides: list[Override]


class Reduce(Model):
    calcs: list[Literal["lastNotNull"]]
    fields: str
    values: bool


class Legend(Model):
    display_mode: Literal["table", "list"]
    placement: Literal["bottom"]
    show_legend: bool
    calcs: list[Literal["lastNotNull", "max"]]


class Tooltip(Model):
    mode: Literal["single", "multi"]
    sort: Literal["none", "desc"]


class StatOptions(Model):
    reduce_options: Reduce
    color_mode: Literal["background"]
    graph_mode: Literal["area"]
    text_mode: Literal["auto"]
    justify_mode: Literal["auto"]
    orientation: Literal["auto"]


class GraphOptions(Model):
    legend: Legend
    tooltip: Tooltip


class TimelineOptions(GraphOptions):
    merge_values: bool
    show_value: Literal["auto"]
    align_value: Literal["left"]
    row_height: float


class TableOptions(Model):
    show_header: bool
    cell_height: Literal["sm"]


class Organize(Model):
    exclude_by_name: dict[str, bool]


class Transformation(Model):
    id: Literal["organize"]
    options: Organize


class PanelBase(Model):
    id: int
    title: Text
    grid_pos: Place


class Panel(PanelBase):
    description: Text
    datasource: Source
    targets: Annotated[list[Target], Meta(min_length=1)]
    field_config: FieldConfig
    links: list[DataLink]


class Row(PanelBase, tag_field="type", tag="row"):
    collapsed: bool
    panels: list[Any]


class Stat(Panel, tag_field="type", tag="stat"):
    options: StatOptions


class Graph(Panel, tag_field="type", tag="timeseries"):
    options: GraphOptions


class Timeline(Panel, tag_field="type", tag="state-timeline"):
    options: TimelineOptions


class Table(Panel, tag_field="type", tag="table"):
    options: TableOptions
    transformations: list[Transformation]


class Annotation(Model):
    name: Text
    datasource: Source
    enable: bool
    hide: bool
    icon_color: Color
    expr: Text
    title_format: Text
    step: str


class Annotations(Model):
    entries: list[Annotation] = msgspec.field(name="list")


class Option(Model):
    text: str | list[str]
    value: str | list[str]
    selected: bool = False


class Current(Model):
    text: str | list[str] = ""
    value: str | list[str] = ""


class VariableQuery(Model):
    query: Text
    ref_id: Text


class Variable(Model):
    name: Annotated[str, Meta(pattern="^[a-z]+$")]
    label: Text
    type: Literal["datasource", "custom", "query", "textbox"]
    query: str | VariableQuery
    current: Current
    hide: Literal[0]
    options: list[Option] = []
    datasource: Source | None = None
    include_all: bool = False
    all_value: str = ""
    multi: bool = False
    refresh: Literal[0, 1, 2] = 0
    sort: Literal[0, 1] = 0


class Templating(Model):
    entries: list[Variable] = msgspec.field(name="list")


class Link(Model):
    title: Text
    type: Literal["dashboards", "link"]
    tags: list[str]
    target_blank: bool
    as_dropdown: bool = False
    include_vars: bool = False
    keep_time: bool = False
    url: str = ""
    icon: str = ""
    tooltip: str = ""


class Range(Model):
    from_: str = msgspec.field(name="from")
    to: str


class Dashboard(Model):
    """One dashboard, as its file has it."""

    uid: Annotated[str, Meta(pattern="^farmd-[a-z]+$", max_length=40)]
    title: Text
    description: Text
    tags: list[str]
    schema_version: Literal[41]
    version: int
    editable: bool
    graph_tooltip: Literal[1]
    timezone: Literal["utc"]
    refresh: Literal["30s"]
    time: Range
    timepicker: dict[str, Any]
    fiscal_year_start_month: int
    annotations: Annotations
    templating: Templating
    links: list[Link]
    panels: list[Row | Stat | Graph | Timeline | Table]

    def drawn(self) -> list[Stat | Graph | Timeline | Table]:
        """The panels that ask for data."""
        return [panel for panel in self.panels if not isinstance(panel, Row)]
