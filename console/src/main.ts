// Connects the event stream to the panels and charts of the page.

import { LatencyChart, QueueChart } from './charts'
import { Connection } from './connection'
import { byId, say, set } from './dom'
import { about, Panels, schedulerLink } from './panels'
import { RecentPanel } from './recent'
import { Series } from './series'
import { logoutRequest } from './session'
import { VerdictPanel } from './verdict'

const verdict = new VerdictPanel()
const panels = new Panels()
const recent = new RecentPanel()
const series = new Series()
const charts = [new LatencyChart(byId('ttft-chart'), series), new QueueChart(byId('queue-chart'), series)]

new Connection('events', {
  history: (history) => {
    series.clear()
    series.add(history.points)
  },
  state: (state) => {
    series.add(state.latency_points)
    say(byId('about'), about(state))
    const scheduler = schedulerLink(state)
    set(byId('scheduler'), { href: scheduler, hidden: scheduler === null })
    verdict.show(state)
    panels.show(state)
    recent.show(state.recent)
    // A hidden page is not drawn.
    if (!document.hidden) for (const chart of charts) chart.show()
  },
  session: (session) => {
    set(byId('session'), { hidden: false })
    say(byId('operator'), session.name)
    byId('logout').onclick = () => {
      void fetch('../login/logout', logoutRequest(session)).then(() => { location.assign('../login/logout') })
    }
  },
  ended: () => { location.reload() },
  link: (link, text) => {
    set(byId('link'), { 'data-link': link })
    set(document.body, { 'data-stale': link === 'reconnecting' })
    say(byId('link-text'), text)
  },
})
