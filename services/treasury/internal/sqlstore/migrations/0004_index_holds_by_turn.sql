-- What a turn has cost is asked when its run is given up: not by reading all holds that
-- its agent ever had.
create index holds_turn on holds (agent, turn);
