"""`forecache bench run`: a suite of policies on real engines, through HTTP, round by round.

`suite` reads the file, `points` says what is run on which engine and in which order, `engines` starts and stops them,
`load` plays one round over `call`, `plan_desk` and `planner` send what forecasts say, `run` is the loop over all of it.
"""
