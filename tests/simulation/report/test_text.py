"""Does a report read well in a terminal?"""

import re
from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, TenantId
from headgate.simulation.baselines.no_queue import RoundRobin
from headgate.simulation.report.table import text
from headgate.simulation.virtual.scenario import Callers
from tests.simulation.report.builders import a_full_report, a_report, a_scenario, a_story, refused


def test_a_small_run_is_told_in_a_few_lines() -> None:
    stories = [a_story(number=number) for number in range(3)]

    assert text(a_report(*stories, refused(), samples=20, scheduler="headgate"), 99) == snapshot("""\
A <made-up> run
scheduler headgate, seed 7; 2 x tiny in main
4 requests in 120 s (0.0333/s), over after 130 s
interactive is good with TTFT ≤ 2 s, TPOT ≤ 100 ms; callers leave after 10 s

What became of the requests
class  arrivals  arrivals/s  good  late  refused  left  goodput/s  attained  retries
all           4      0.0333     3     0        1     0      0.025     75.0%        0

How long it took
latency                 p50     p90     p95     p99    mean     max
all            TTFT     1 s     1 s     1 s     1 s     1 s     1 s
               TPOT   50 ms   50 ms   50 ms   50 ms   50 ms   50 ms
                E2E   1.5 s   1.5 s   1.5 s   1.5 s   1.5 s   1.5 s
         queue wait  400 ms  400 ms  400 ms  400 ms  400 ms  400 ms

What it cost
class  tokens  tokens wasted  engine-s  engine-s wasted  sent  attempts each
all       333           0.0%       0.9             0.0%     3          1.000

Engines
engine     up   busy  generated  prefix hits  preempted  in flight  max  KV mean  KV max
main/0  130 s  75.0%       4000        25.0%          3        4.5   10      41%     83%
main/1  130 s  75.0%       4000        25.0%          3        3.7    7      61%     99%
main/0 held more than in_flight_max: callers that left count until their step ends

refused: queue_full 1
engine-seconds: 260 up, of which good 0.3%, unassigned 74.7%, idle 25.0%
the fullest engine held 1.10 times the mean of those up with it\
""")


def test_a_run_of_several_classes_and_tenants_has_a_row_for_each_class() -> None:
    assert text(a_full_report(), 99) == snapshot("""\
A <made-up> run
scheduler Scheduler, seed 7; 2 x tiny in main
1500 requests in 120 s (12.5/s), over after 130 s
interactive is good with TTFT ≤ 2 s, TPOT ≤ 100 ms; callers leave after 10 s
batch is good with TTFT ≤ 60 s, E2E ≤ 90 s; callers retry up to 2 times
whole is good with E2E ≤ 20 s
unheard-of is good with any complete answer

What became of the requests
class        arrivals  good  late  refused  given up  left  failed  goodput/s  attained  retries
interactive       756   136   119      335        61    34      71       1.13     18.0%      464
batch             239    82     0      107        21     7      22      0.683     34.3%      131
whole             269    72     5      137        21     9      25        0.6     26.8%      152
unheard-of        236    90     0      100        21    12      13       0.75     38.1%      148
all              1500   380   124      679       124    62     131       3.17     25.3%      895

How long it took
latency                     p50     p90     p95     p99    mean     max
interactive        TTFT  922 ms  4.39 s  7.42 s  13.4 s  1.98 s  45.8 s
                   TPOT  104 ms  231 ms  248 ms  264 ms  119 ms  265 ms
                    E2E  1.78 s  19.6 s  29.3 s  45.4 s  6.24 s  46.3 s
             queue wait  1.48 s  2.71 s  2.86 s  2.97 s  1.46 s  2.99 s
batch              TTFT  845 ms   4.8 s   8.3 s  21.4 s  2.59 s  66.2 s
                   TPOT  106 ms  209 ms  251 ms  277 ms  123 ms  277 ms
                    E2E  1.78 s  24.9 s  35.8 s    55 s  7.78 s    55 s
             queue wait  1.71 s  2.71 s  2.92 s  2.98 s  1.64 s  2.99 s
whole               E2E  1.65 s  12.6 s  38.3 s  43.9 s  5.51 s  43.9 s
             queue wait  1.37 s  2.72 s   2.8 s  2.93 s  1.42 s  2.98 s
unheard-of         TTFT  1.28 s  5.88 s  8.35 s  27.3 s  2.54 s  28.1 s
                   TPOT  109 ms  237 ms  262 ms  275 ms  126 ms  275 ms
                    E2E  1.83 s  25.6 s  32.1 s    43 s  7.01 s    43 s
             queue wait  1.51 s  2.68 s  2.82 s  2.97 s  1.49 s  2.98 s
all                TTFT  974 ms  4.95 s  7.91 s  19.5 s  2.21 s  66.2 s
                   TPOT  108 ms  234 ms  256 ms  269 ms  121 ms  277 ms
                    E2E  1.78 s  21.4 s  32.1 s  43.9 s  6.52 s    55 s
             queue wait  1.52 s  2.71 s  2.85 s  2.97 s  1.48 s  2.99 s

What it cost
class        tokens  tokens wasted  engine-s  engine-s wasted  sent  attempts each
interactive   1.53M          73.8%      36.6            74.7%   494          1.573
batch        474313          39.6%      11.7            41.7%   153          1.549
whole        611029          56.6%      13.6            56.2%   177          1.571
unheard-of   547108          41.6%      12.8            40.8%   164          1.628
all           3.17M          59.8%      74.7            60.4%   988          1.578

How evenly tenants were served
class        tenants  Jain of attainment  Jain of engine-s  worst tenant  attained
interactive        9               0.936             0.749            t4     13.6%
batch              9               0.955             0.710            t0     27.3%
whole              9               0.851             0.808            t2     16.7%
unheard-of         9               0.787             0.668            t3     34.5%
all                9               0.978             0.752            t8     15.0%
Jain of engine-s measures how even the amounts are, and so follows what tenants ask for

The worst-off tenants with at least 20 requests of a class
tenant        class  arrivals  good  attained  p50 TTFT  p99 TTFT  engine-s
t4      interactive        88    12     13.6%    1.12 s    12.2 s      4.52
t2      interactive       143    22     15.4%    928 ms    16.7 s      6.29
t2            whole        42     7     16.7%         -         -      1.87
t6      interactive        40     7     17.5%    712 ms    5.85 s      2.55
t5      interactive        68    12     17.6%    877 ms    19.5 s      3.02
t3      interactive       101    19     18.8%    713 ms    7.95 s      4.71
t1      interactive       156    30     19.2%    1.22 s    45.8 s       7.6
t0      interactive       132    28     21.2%    602 ms    12.7 s      6.45

Engines
engine     up   busy  generated  prefix hits  preempted  in flight  max  KV mean  KV max
main/0  130 s  75.0%       4000        25.0%          3       4.98   10      43%     96%
main/1  130 s  75.0%       4000        25.0%          3       4.57   10      55%     99%
main/0 and 1 more held more than in_flight_max: callers that left count until their step ends

refused: unauthorized 58, forbidden 54, unverified 54, rate_limited 50, retry_refused 49,
  model_not_found 48, no_endpoints 45, too_large 45, duplicate 43, invalid 43, draining 42,
  over_budget 41, shed 40, queue_full 37, unreachable 30
given up: expired 44, too_late 44, evicted 36
failed: engine_silent 46, engine_failed 43, engine_refused 42; 19 of them after the first token,
  and so not retried
engine-seconds: 260 up, of which good 11.4%, late 3.8%, refused 9.3%, given up 1.4%, left 0.6%,
  failed 2.2%, unassigned 46.3%, idle 25.0%
the fullest engine held 1.04 times the mean of those up with it\
""")


def test_an_empty_run_says_so() -> None:
    assert text(a_report(scenario=a_scenario(engines=0)), 99) == snapshot("""\
A <made-up> run
scheduler Scheduler, seed 7; no engines
0 requests in 120 s (0/s), over after 130 s

What became of the requests
class  arrivals  arrivals/s  good  late  refused  left  goodput/s  attained  retries
all           0           0     0     0        0     0          0         -        0

What it cost
class  tokens  tokens wasted  engine-s  engine-s wasted  sent  attempts each
all         0              -         0                -     0              -\
""")


@pytest.mark.parametrize("width", [60, 72, 80, 99])
def test_lines_fit_the_width(width: int) -> None:
    told = text(a_full_report(engines=3), width)

    assert max(map(len, told.splitlines())) <= width
    assert len(told.split("\n\n")) == 8


@pytest.mark.parametrize("width", range(44, 100, 4))
def test_fates_add_up_in_any_width(width: int) -> None:
    lines = text(a_full_report(), width).splitlines()
    heading = next(place for place, line in enumerate(lines) if line.startswith("class"))
    names = re.split("  +", lines[heading])
    fates = ("good", "late", "refused", "given up", "left", "failed", "other")
    for line in lines[heading + 1 : heading + 6]:
        row = dict(zip(names, line.split(), strict=True))
        assert sum(int(row.get(fate, 0)) for fate in fates) == int(row["arrivals"])


def test_rates_go_before_fates_do() -> None:
    lines = text(a_full_report(), 66 + len("  attained")).splitlines()

    assert "class        arrivals  good  late  refused  given up  left  failed  attained" in lines


def test_where_everybody_gets_everything_nobody_is_worst_off() -> None:
    stories = [a_story(tenant=TenantId(name)) for name in ("acme", "globex") for _ in range(20)]

    everybody = text(a_report(*stories), 99)
    most = text(a_report(*stories, refused(tenant=TenantId("tiny"))), 99)
    acme_not = text(a_report(*stories, refused(tenant=TenantId("acme"))), 99)

    assert "\nall tenants at 100 %\n" in everybody
    assert "\nall tenants with at least 20 requests of a class at 100 %\n" in most
    assert "worst-off" not in everybody + most
    assert "worst-off" in acme_not
    assert "100 %" not in acme_not
    assert [line.split()[-2:] for line in everybody.splitlines() if line.startswith("all  ")][-1] == ["-", "100.0%"]


def test_failures_that_nobody_can_retry_are_told() -> None:
    failed = a_story(outcome=Outcome.ENGINE_FAILED)
    told = text(a_report(failed, failed, a_story(outcome=Outcome.ENGINE_FAILED, first_token_at=None)), 99)

    assert "failed: engine_failed 3; 2 of them after the first token, and so not retried" in told
    assert "failed: engine_failed 1; all of them" in text(a_report(failed), 99)


@pytest.mark.parametrize(("retries", "manners"), [(1, "retry once"), (3, "retry up to 3 times")])
def test_retries_are_those_of_the_file(retries: int, manners: str) -> None:
    scenario = a_scenario(callers={ClassName("interactive"): Callers(retries=retries)})

    assert f"callers {manners}\n" in text(a_report(a_story(), scenario=scenario), 99)


def test_an_engine_that_held_more_than_its_limit_is_explained() -> None:
    note = "held more than in_flight_max: callers that left count until their step ends"
    roomy = tuple(replace(spec, in_flight_max=11) for spec in a_scenario().engines)
    told = text(a_report(a_story(), samples=150), 99)

    assert f"main/0 and 1 more {note}" in told
    assert note not in text(a_report(a_story(), samples=150, scenario=replace(a_scenario(), engines=roomy)), 99)
    assert note not in text(a_report(a_story(), samples=150, scenario=a_scenario(decider=RoundRobin)), 99)


def test_of_many_engines_some_are_shown() -> None:
    told = text(a_full_report(engines=20, count=50), 99)

    assert "main/15 " in told
    assert "main/16 " not in told
    assert "and 4 more" in told
