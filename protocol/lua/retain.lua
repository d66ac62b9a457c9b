-- Says how much is kept, and for how long: fields keep_… of G, which the scripts read. The newest worker's word counts.
-- ARGV: worker, incarnation, name, value, … ('' for ever)
-- Answers: {'ok'} | {'lost'} (this worker has no lease) | {'superseded', the incarnation of the worker whose word counts}
-- Events: none
local worker, incarnation = ARGV[1], ARGV[2]
if call('HGET', G .. ':worker:' .. worker, 'incarnation') ~= incarnation then return { 'lost', '' } end
local by = whole(call('HGET', G, 'keep_by'))
if by and by > tonumber(incarnation) then return { 'superseded', string.format('%.0f', by) } end
call('HSET', G, 'keep_by', incarnation)
for i = 3, #ARGV, 2 do
  if ARGV[i + 1] == '' then call('HDEL', G, 'keep_' .. ARGV[i])
  else call('HSET', G, 'keep_' .. ARGV[i], ARGV[i + 1]) end
end
return { 'ok', '' }
