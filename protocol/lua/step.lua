-- Records a step of the message in processing, so that a replay knows what was done and what had begun.
-- ARGV: room, ticket, name, act, result
--   begin   unless an earlier cycle began it and did not say how it ended
--   again   begin, whatever became of it before
--   done    record its result
--   failed  forget that it had begun: it says of itself that it did not happen
-- Answers: {'run'} (begun for this cycle: call the function) | {'done', result} | {'unknown'} (begun by an earlier cycle
-- that did not say how it ended) | {'ok'} (recorded) | {'fenced'} | {'interrupt'} | {'stop'}
-- A step's value is '?<ticket>' while it runs and '!<result>' when it is done.
local room, ticket, name, act, result = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local h = load(room)
local why = refused(h, ticket)
if why then return { why, '' } end

local steps = room_key(room) .. ':steps'
local value = call('HGET', steps, name)
if act == 'done' then
  call('HSET', steps, name, '!' .. result)
  return { 'ok', '' }
elseif act == 'failed' then
  if value == '?' .. ticket then call('HDEL', steps, name) end
  return { 'ok', '' }
end
if value and value:sub(1, 1) == '!' then return { 'done', value:sub(2) } end
if value and value ~= '?' .. ticket and act ~= 'again' then return { 'unknown', '' } end
call('HSET', steps, name, '?' .. ticket)
return { 'run', '' }
