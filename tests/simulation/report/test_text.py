"""Tests for the text report."""

import re
from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, TenantId
from headgate.simulation.baselines.no_queue import RoundRobin
from headgate.simulation.options import CallerBehaviour
from headgate.simulation.report.text_report import render_text
from tests.simulation.report.builders import a_full_report, a_report, a_scenario, a_story, refused


def test_report_for_a_single_class_has_only_a_total_row() -> None:
    stories = [a_story(number=number) for number in range(3)]

    assert render_text(a_report(*stories, refused(), samples=20, scheduler="headgate"), 99) == snapshot("""\
A <made-up> run
scheduler headgate, seed 7; 2 x tiny in main
4 requests in 120 s (0.0333/s); run ended after 130 s
interactive: good if TTFT ≤ 2 s, TPOT ≤ 100 ms; clients disconnect after 10 s

Requests by result
class  arrivals  arrivals/s  good  late  rejected  cancelled  goodput/s  attained  retries
all           4      0.0333     3     0         1          0      0.025     75.0%        0

Latency
latency                 p50     p90     p95     p99    mean     max
all            TTFT     1 s     1 s     1 s     1 s     1 s     1 s
               TPOT   50 ms   50 ms   50 ms   50 ms   50 ms   50 ms
                E2E   1.5 s   1.5 s   1.5 s   1.5 s   1.5 s   1.5 s
         queue wait  400 ms  400 ms  400 ms  400 ms  400 ms  400 ms

Tokens and engine time
class  tokens  tokens wasted  engine-s  engine-s wasted  dispatched  attempts mean
all       333           0.0%       0.9             0.0%           3          1.000

Engines
engine     up   busy  generated  prefix hits  preempted  in flight  max  KV mean  KV max
main/0  130 s  75.0%       4000        25.0%          3        4.5   10      41%     83%
main/1  130 s  75.0%       4000        25.0%          3        3.7    7      61%     99%
main/0 exceeded in_flight_max: cancelled requests are counted until the step ends

rejected: queue_full 1
engine time: 260 s, of which good 0.3%, unattributed 74.7%, idle 25.0%
most loaded engine: 1.10 times the mean requests in flight per engine\
""")


def test_report_has_one_row_per_class() -> None:
    assert render_text(a_full_report(), 99) == snapshot("""\
A <made-up> run
scheduler Scheduler, seed 7; 2 x tiny in main
1500 requests in 120 s (12.5/s); run ended after 130 s
interactive: good if TTFT ≤ 2 s, TPOT ≤ 100 ms; clients disconnect after 10 s
batch: good if TTFT ≤ 60 s, E2E ≤ 90 s; clients retry up to 2 times
whole: good if E2E ≤ 20 s
unheard-of: good if completed

Requests by result
class        arrivals  good  late  rejected  dropped  cancelled  failed  attained  retries
interactive       757   142   110       333       72         26      74     18.8%      470
batch             251    77     0       120       17          8      29     30.7%      138
whole             267    70     7       137       24          2      27     26.2%      153
unheard-of        225    84     0        89       22          3      27     37.3%      140
all              1500   373   117       679      135         39     157     24.9%      901

Latency
latency                      p50     p90     p95     p99    mean     max
interactive        TTFT   957 ms  4.26 s  6.95 s  12.6 s  1.85 s  16.7 s
                   TPOT  90.5 ms  220 ms  244 ms  265 ms  109 ms  267 ms
                    E2E   1.83 s  20.7 s  29.9 s  43.9 s  6.47 s  46.3 s
             queue wait   1.47 s  2.68 s  2.84 s  2.98 s  1.44 s  2.99 s
batch              TTFT   761 ms   3.7 s  8.08 s  21.4 s  2.37 s  66.2 s
                   TPOT   100 ms  250 ms  269 ms  277 ms  124 ms  277 ms
                    E2E   1.43 s  21.4 s  33.7 s  44.7 s  6.29 s  44.7 s
             queue wait   1.73 s  2.86 s  2.91 s  2.99 s  1.66 s  2.99 s
whole               E2E   1.97 s    18 s  38.3 s  43.9 s  6.46 s  43.9 s
             queue wait   1.35 s  2.71 s  2.81 s  2.96 s  1.41 s  2.98 s
unheard-of         TTFT   1.29 s  5.96 s  8.35 s  27.3 s  2.52 s  28.1 s
                   TPOT   108 ms  239 ms  262 ms  275 ms  125 ms  275 ms
                    E2E    1.9 s  25.6 s  32.1 s    43 s   7.4 s    43 s
             queue wait   1.49 s  2.63 s  2.78 s  2.93 s  1.45 s  2.97 s
all                TTFT   1.01 s  4.31 s  7.47 s  16.3 s  2.09 s  66.2 s
                   TPOT  95.7 ms  237 ms  250 ms  269 ms  115 ms  277 ms
                    E2E   1.78 s  21.4 s  32.2 s  43.9 s   6.6 s  46.3 s
             queue wait   1.49 s   2.7 s  2.85 s  2.98 s  1.47 s  2.99 s

Tokens and engine time
class        tokens  tokens wasted  engine-s  engine-s wasted  dispatched  attempts mean
interactive   1.53M          71.2%      36.9            74.2%         495          1.545
batch        502422          44.6%      12.8            46.8%         161          1.528
whole        634065          58.1%      14.4            55.7%         179          1.598
unheard-of   504107          41.6%      12.1            39.3%         153          1.627
all           3.17M          59.7%      76.1            60.6%         988          1.565

Fairness among tenants
class        tenants  Jain attainment  Jain engine-s  worst tenant  attained
interactive        9            0.929          0.737            t5     13.9%
batch              9            0.945          0.679            t5     25.0%
whole              9            0.838          0.769            t2     17.0%
unheard-of         9            0.827          0.701            t2     27.3%
all                9            0.970          0.740            t8     15.0%
Jain engine-s compares absolute amounts, so it also reflects differences in demand

Worst-served tenants (at least 20 requests per class)
tenant        class  arrivals  good  attained  p50 TTFT  p99 TTFT  engine-s
t5      interactive        72    10     13.9%    877 ms    13.4 s      2.82
t4      interactive        86    13     15.1%    892 ms    12.2 s       4.1
t2      interactive       139    23     16.5%    928 ms    16.7 s      6.76
t2            whole        47     8     17.0%         -         -       2.3
t1      interactive       158    28     17.7%    1.22 s    11.4 s      7.54
t6      interactive        48     9     18.8%    1.16 s    5.85 s      2.77
t3      interactive        87    19     21.8%    926 ms    5.93 s      4.02
t0            whole        58    14     24.1%         -         -      3.12

Engines
engine     up   busy  generated  prefix hits  preempted  in flight  max  KV mean  KV max
main/0  130 s  75.0%       4000        25.0%          3       4.98   10      43%     96%
main/1  130 s  75.0%       4000        25.0%          3       4.57   10      55%     99%
main/0 and 1 more exceeded in_flight_max: cancelled requests are counted until the step ends

rejected: forbidden 55, key_unverified 53, unauthorized 53, rate_limited 47, retry_budget_exhausted
  46, model_not_found 45, quarantined 45, budget_exceeded 44, shed 41, duplicate_request 39,
  no_endpoints 39, invalid_request 38, queue_full 37, request_too_large 37, draining 33,
  deadline_infeasible 27
dropped: evicted 57, deadline_exceeded 39, queue_timeout 39
failed: engine_rejected 45, engine_timeout 38, engine_error 37, internal_error 37; 26 of them not
  retried because the response had started
engine time: 260 s, of which good 11.5%, late 3.6%, rejected 9.8%, dropped 1.2%, cancelled 0.7%,
  failed 2.5%, unattributed 45.7%, idle 25.0%
most loaded engine: 1.04 times the mean requests in flight per engine\
""")


def test_report_for_an_empty_run_omits_latency_and_engines() -> None:
    assert render_text(a_report(scenario=a_scenario(engines=0)), 99) == snapshot("""\
A <made-up> run
scheduler Scheduler, seed 7; no engines
0 requests in 120 s (0/s); run ended after 130 s

Requests by result
class  arrivals  arrivals/s  good  late  rejected  cancelled  goodput/s  attained  retries
all           0           0     0     0         0          0          0         -        0

Tokens and engine time
class  tokens  tokens wasted  engine-s  engine-s wasted  dispatched  attempts mean
all         0              -         0                -           0              -\
""")


@pytest.mark.parametrize("width", [60, 72, 80, 99])
def test_lines_fit_within_the_width(width: int) -> None:
    told = render_text(a_full_report(engines=3), width)

    assert max(map(len, told.splitlines())) <= width
    assert len(told.split("\n\n")) == 8


@pytest.mark.parametrize("width", range(44, 100, 4))
def test_results_sum_to_arrivals_at_any_width(width: int) -> None:
    lines = render_text(a_full_report(), width).splitlines()
    heading = next(place for place, line in enumerate(lines) if line.startswith("class"))
    names = re.split("  +", lines[heading])
    fates = ("good", "late", "rejected", "dropped", "cancelled", "failed", "other")
    for line in lines[heading + 1 : heading + 6]:
        row = dict(zip(names, line.split(), strict=True))
        assert sum(int(row.get(fate, 0)) for fate in fates) == int(row["arrivals"])


def test_rate_columns_are_dropped_before_result_columns() -> None:
    lines = render_text(a_full_report(), 71 + len("  attained")).splitlines()

    assert "class        arrivals  good  late  rejected  dropped  cancelled  failed  attained" in lines


def test_report_names_no_worst_tenant_if_all_attained_100_percent() -> None:
    stories = [a_story(tenant=TenantId(name)) for name in ("acme", "globex") for _ in range(20)]

    everybody = render_text(a_report(*stories), 99)
    most = render_text(a_report(*stories, refused(tenant=TenantId("tiny"))), 99)
    acme_not = render_text(a_report(*stories, refused(tenant=TenantId("acme"))), 99)

    assert "\nall tenants attained 100 %\n" in everybody
    assert "\nall tenants with at least 20 requests per class attained 100 %\n" in most
    assert "Worst-served" not in everybody + most
    assert "Worst-served" in acme_not
    assert "100 %" not in acme_not
    assert [line.split()[-2:] for line in everybody.splitlines() if line.startswith("all  ")][-1] == ["-", "100.0%"]


def test_report_counts_failures_after_the_response_has_started() -> None:
    failed = a_story(outcome=Outcome.ENGINE_ERROR)
    told = render_text(a_report(failed, failed, a_story(outcome=Outcome.ENGINE_ERROR, first_token_at=None)), 99)

    assert "failed: engine_error 3; 2 of them not retried because the response had started" in told
    assert "failed: engine_error 1; all of them" in render_text(a_report(failed), 99)


@pytest.mark.parametrize(("retries", "manners"), [(1, "retry once"), (3, "retry up to 3 times")])
def test_report_shows_the_configured_client_retries(retries: int, manners: str) -> None:
    scenario = a_scenario(callers={ClassName("interactive"): CallerBehaviour(retries=retries)})

    assert f"clients {manners}\n" in render_text(a_report(a_story(), scenario=scenario), 99)


def test_report_explains_engines_above_their_in_flight_limit() -> None:
    note = "exceeded in_flight_max: cancelled requests are counted until the step ends"
    roomy = tuple(replace(spec, in_flight_max=11) for spec in a_scenario().engines)
    told = render_text(a_report(a_story(), samples=150), 99)

    assert f"main/0 and 1 more {note}" in told
    assert note not in render_text(a_report(a_story(), samples=150, scenario=replace(a_scenario(), engines=roomy)), 99)
    assert note not in render_text(a_report(a_story(), samples=150, scenario=a_scenario(decider=RoundRobin)), 99)


def test_report_lists_at_most_sixteen_engines() -> None:
    told = render_text(a_full_report(engines=20, count=50), 99)

    assert "main/15 " in told
    assert "main/16 " not in told
    assert "and 4 more" in told
