/** A figure of a study, drawn from its data. */
import type { JSX } from "preact";
import type { StudyFigure } from "../contract";
import { BarChart, HistogramChart } from "./bars";
import { HeatMap } from "./heat";
import { Lines } from "./lines";
import { PointCloud } from "./points";

export function Drawing({ figure }: { figure: StudyFigure }): JSX.Element {
  switch (figure.kind) {
    case "lines":
      return <Lines figure={figure} />;
    case "bars":
      return <BarChart figure={figure} />;
    case "heat map":
      return <HeatMap figure={figure} />;
    case "scatter":
      return <PointCloud figure={figure} />;
    case "histogram":
      return <HistogramChart figure={figure} />;
  }
}
