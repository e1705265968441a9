// Charts of time to first token and queue depth over time.

import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'

import { element } from './dom'
import { milliseconds } from './format'
import { axisMilliseconds, longGaps, type Series, timeRange } from './series'

const HEIGHT = 196
/** Line styles, so that classes can be distinguished without colours. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]]
const COLOURS = 8

interface Line {
  label: string
  colour: string
  dash: number[]
  width: number
}

export abstract class Chart {
  private plot: uPlot | null = null
  private drawn = ''
  private readonly legend = element('ul', { class: 'legend' })
  private readonly box = element('div')

  protected constructor(
    private readonly place: HTMLElement,
    protected readonly series: Series,
    private readonly title: string,
  ) {
    this.box.setAttribute('role', 'img')
    place.append(this.box, this.legend)
    new ResizeObserver(() => { this.resize() }).observe(place)
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { this.forget() })
  }

  show(): void {
    if (this.series.length === 0) return
    const shape = this.series.classes.join('\n')
    if (this.plot === null || shape !== this.drawn) this.open(shape)
    this.plot?.setData(this.data() as uPlot.AlignedData)
    this.box.setAttribute('aria-label', `${this.title}: ${this.words()}`)
  }

  protected abstract data(): (number | null)[][]
  protected abstract lines(): Line[]
  protected abstract axis(value: number): string
  protected abstract words(): string
  protected abstract range(low: number | null, high: number | null): [number, number]
  protected abstract readonly logarithmic: boolean

  protected colour(place: number): string {
    return getComputedStyle(this.place).getPropertyValue(`--line-${(place % COLOURS) + 1}`).trim()
  }

  protected dash(place: number): number[] {
    return DASHES[place % DASHES.length] ?? []
  }

  private forget(): void {
    this.drawn = ''
    this.show()
  }

  private resize(): void {
    const width = this.place.clientWidth
    if (this.plot !== null && width > 0) this.plot.setSize({ width, height: HEIGHT })
  }

  private open(shape: string): void {
    this.plot?.destroy()
    this.drawn = shape
    const style = getComputedStyle(this.place)
    const text = style.getPropertyValue('--muted').trim()
    const grid = style.getPropertyValue('--line').trim()
    const font = '12px system-ui, sans-serif'
    const lines = this.lines()
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } }
    const options: uPlot.Options = {
      width: Math.max(200, this.place.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: true, range: (_, low, high) => timeRange(low, high) },
        y: {
          distr: this.logarithmic ? 3 : 1,
          range: (_, low, high) => this.range(low, high),
        },
      },
      axes: [
        { ...axis, size: 28, space: 70, incrs: [60, 120, 300, 600], values: (_, marks) => marks.map(timeOfDay) },
        { ...axis, grid: { ...axis.grid, filter: this.logarithmic ? decades : (_, marks) => marks }, size: 62, values: (_, marks) => marks.map((mark) => (mark === null ? '' : this.axis(mark))), filter: this.logarithmic ? decades : (_, marks) => marks },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: line.width,
          dash: line.dash,
          gaps: (plot: uPlot, _series: number, _first: number, _last: number, found: uPlot.Series.Gaps) =>
            longGaps(found, (pixel) => plot.posToVal(pixel, 'x', true)),
          points: { show: false },
        })),
      ],
    }
    this.plot = new uPlot(options, this.data() as uPlot.AlignedData, this.box)
    this.legend.replaceChildren(...this.series.classes.map((name, place) => this.entry(name, place)))
  }

  private entry(name: string, place: number): HTMLElement {
    const swatch = element('span', { class: 'swatch', 'aria-hidden': 'true' })
    swatch.style.borderTopColor = this.colour(place)
    swatch.style.borderTopStyle = this.dash(place).length ? 'dashed' : 'solid'
    return element('li', {}, swatch, name)
  }
}

export class LatencyChart extends Chart {
  protected readonly logarithmic = true

  constructor(place: HTMLElement, series: Series) {
    super(place, series, 'Time to first token')
  }

  protected override data(): (number | null)[][] {
    const [times = [], ...slow] = this.series.columns('ttft_p99_ms')
    const [, ...usual] = this.series.columns('ttft_p50_ms')
    return [times, ...[...slow, ...usual].map((line) => line.map((value) => (value === 0 ? null : value)))]
  }

  protected override lines(): Line[] {
    const slow = this.series.classes.map((label, place) => ({ label, colour: this.colour(place), dash: this.dash(place), width: 2 }))
    const usual = this.series.classes.map((label, place) => ({ label, colour: this.colour(place), dash: [1, 4], width: 1.5 }))
    return [...slow, ...usual]
  }

  protected override axis(value: number): string {
    return axisMilliseconds(value)
  }

  protected override range(low: number | null, high: number | null): [number, number] {
    if (low === null || high === null) return [10, 10_000]
    const bottom = 10 ** Math.floor(Math.log10(Math.max(1, low)))
    return [bottom, Math.max(bottom * 10, 10 ** Math.ceil(Math.log10(Math.max(1, high) * 1.05)))]
  }

  protected override words(): string {
    const [, ...slow] = this.series.columns('ttft_p99_ms')
    return this.series.classes.map((name, place) => `${name} p99 ${milliseconds(slow[place]?.at(-1) ?? null)}`).join(', ')
  }
}

export class QueueChart extends Chart {
  protected readonly logarithmic = false

  constructor(place: HTMLElement, series: Series) {
    super(place, series, 'Requests waiting')
  }

  protected override data(): (number | null)[][] {
    return this.series.columns('queued')
  }

  protected override lines(): Line[] {
    return this.series.classes.map((label, place) => ({ label, colour: this.colour(place), dash: this.dash(place), width: 2 }))
  }

  protected override axis(value: number): string {
    return Number.isInteger(value) ? value.toLocaleString('en-US') : ''
  }

  protected override range(_: number | null, high: number | null): [number, number] {
    return [0, Math.max(5, Math.ceil((high ?? 0) * 1.1))]
  }

  protected override words(): string {
    const [, ...waiting] = this.series.columns('queued')
    return this.series.classes.map((name, place) => `${name} ${waiting[place]?.at(-1) ?? 0}`).join(', ')
  }
}

function timeOfDay(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })
}

function decades(_: uPlot, marks: number[]): (number | null)[] {
  return marks.map((mark) => (Number.isInteger(Math.round(Math.log10(mark) * 1e6) / 1e6) ? mark : null))
}
