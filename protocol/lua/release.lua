-- Gives back a room that this worker owns but runs no cycle of (draining): anyone may take it.
-- ARGV: room, worker, ready id
-- Answers: {'ok'} | {'lost'}
local room, worker, ready = ARGV[1], ARGV[2], ARGV[3]
local h = load(room)
if h.ready ~= ready or h.cycle or #call('XPENDING', READY, GROUP, ready, ready, 1, worker) == 0 then
  return { 'lost', '' }
end
unready(h)
park(h)
save(h)
return { 'ok', '' }
