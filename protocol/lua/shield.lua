-- Puts up, or takes down, the shield of a live cycle. While it is up, interrupt and stop are deferred.
-- ARGV: room, ticket, on ('1' or '')
-- Answers: {'ok'} | {'interrupt'} | {'stop'} (aborted: before the shield was up, or by what it had deferred) | {'fenced'}
-- Events: cycle.shielded, cycle.unshielded are not recorded; the hash shows `shield` and `deferred`.
local room, ticket = ARGV[1], ARGV[2]
local h = load(room)
local why = refused(h, ticket)
if why then return { why, '' } end

if ARGV[3] == '1' then h.shield = '1'
else h.shield, h.abort, h.deferred = nil, h.deferred, nil end
save(h)
return { h.abort or 'ok', '' }
