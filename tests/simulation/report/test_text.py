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
interactive       758   144   136      297        74    32      75        1.2     19.0%      463
batch             241    79     0      111        24     7      20      0.658     32.8%      133
whole             276    81     6      131        25    11      22      0.675     29.3%      165
unheard-of        225    93     0       88        21     7      16      0.775     41.3%      151
all              1500   397   142      627       144    57     133       3.31     26.5%      912

How long it took
latency                     p50     p90     p95     p99    mean     max
interactive        TTFT  928 ms  4.39 s  6.76 s  13.4 s  1.93 s  45.8 s
                   TPOT  109 ms  231 ms  254 ms  263 ms  119 ms  264 ms
                    E2E  1.83 s  19.4 s  29.3 s    46 s  6.09 s  53.8 s
             queue wait  1.48 s  2.68 s  2.84 s  2.96 s  1.47 s  2.99 s
batch              TTFT  1.01 s   6.8 s  8.68 s  14.5 s  2.21 s  21.4 s
                   TPOT  103 ms  209 ms  251 ms  277 ms  123 ms  277 ms
                    E2E  2.01 s  31.8 s  37.6 s  45.9 s  8.12 s  45.9 s
             queue wait  1.65 s   2.7 s  2.92 s  2.98 s  1.58 s  2.99 s
whole               E2E  1.84 s  17.9 s    32 s  40.8 s  5.53 s  40.8 s
             queue wait  1.35 s   2.7 s   2.8 s  2.88 s  1.41 s  2.93 s
unheard-of         TTFT  1.26 s   4.2 s  7.25 s  16.6 s  2.14 s  27.3 s
                   TPOT  117 ms  237 ms  261 ms  275 ms  130 ms  275 ms
                    E2E  1.47 s  22.3 s  29.4 s  43.1 s  5.24 s  43.1 s
             queue wait  1.46 s   2.7 s  2.84 s  2.98 s  1.45 s  2.98 s
all                TTFT  982 ms   4.8 s  7.37 s  16.6 s  2.02 s  45.8 s
                   TPOT  109 ms  235 ms  255 ms  264 ms  122 ms  277 ms
                    E2E  1.78 s  20.7 s  31.8 s  44.7 s  6.15 s  53.8 s
             queue wait  1.49 s  2.69 s  2.84 s  2.96 s  1.47 s  2.99 s

What it cost
class        tokens  tokens wasted  engine-s  engine-s wasted  sent  attempts each
interactive   1.55M          72.7%      38.2            73.2%   507          1.568
batch        474839          42.6%      12.1            45.0%   155          1.523
whole        623540          54.1%      14.4            52.7%   182          1.555
unheard-of   539038          38.7%      11.9            39.1%   158          1.589
all           3.19M          58.8%      76.6            59.6%  1002          1.562

How evenly tenants were served
class        tenants  Jain of attainment  Jain of engine-s  worst tenant  attained
interactive        9               0.821             0.746            t4     11.2%
batch              9               0.864             0.698            t0     28.9%
whole              9               0.927             0.798            t2     18.4%
unheard-of         8               0.971             0.870            t0     37.5%
all                9               0.909             0.764            t8      5.0%
Jain of engine-s measures how even the amounts are, and so follows what tenants ask for

The worst-off tenants with at least 20 requests of a class
tenant        class  arrivals  good  attained  p50 TTFT  p99 TTFT  engine-s
t4      interactive        89    10     11.2%    1.31 s    12.2 s      4.64
t2      interactive       136    23     16.9%    928 ms    19.3 s      6.04
t6      interactive        44     8     18.2%    546 ms    5.85 s      2.84
t2            whole        38     7     18.4%         -         -      1.85
t1      interactive       152    29     19.1%    1.22 s    45.8 s       8.1
t5      interactive        69    14     20.3%    1.04 s    19.5 s      3.15
t0            whole        63    13     20.6%         -         -      2.86
t3      interactive       104    23     22.1%    928 ms    7.95 s      4.89

Engines
engine     up   busy  generated  prefix hits  preempted  in flight  max  KV mean  KV max
main/0  130 s  75.0%       4000        25.0%          3       4.98   10      43%     96%
main/1  130 s  75.0%       4000        25.0%          3       4.57   10      55%     99%
main/0 and 1 more held more than in_flight_max: callers that left count until their step ends

refused: unauthorized 62, forbidden 50, model_not_found 49, no_endpoints 49, draining 46, duplicate
  46, over_budget 46, rate_limited 45, invalid 44, too_large 43, retry_refused 42, shed 36,
  unreachable 36, queue_full 33
given up: expired 52, too_late 50, evicted 42
failed: engine_failed 46, engine_refused 46, engine_silent 41; 21 of them after the first token,
  and so not retried
engine-seconds: 260 up, of which good 11.9%, late 4.3%, refused 8.6%, given up 1.9%, left 0.7%,
  failed 2.1%, unassigned 45.5%, idle 25.0%
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
