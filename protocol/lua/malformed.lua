-- Passes over a hand-written control entry that is no signal: one event, however many workers read it.
-- ARGV: entry id, what is wrong with it
-- Answers: {'ok'} (this call told it) | {'passed'} (told before)
local raw = ARGV[1]
if handled(raw) then return { 'passed', '' } end
event('signal.malformed', 'entry', raw, 'error', ARGV[2])
return { 'ok', '' }
