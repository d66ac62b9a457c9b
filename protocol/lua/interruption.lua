-- Tells how a live cycle was aborted, and what it had done. Changes nothing.
-- ARGV: room, ticket
-- Answers: {'fenced'} | {'live'} (not aborted) | {'interrupt' | 'stop', by, reason, cid, at, ms since the claim,
-- [step, '!' (done) | '?<ticket>' (begun by that cycle), …]}
-- Events: none
local room, ticket = ARGV[1], ARGV[2]
local h = load(room)
if h.cycle ~= ticket then return { 'fenced', '' } end
local abort = aborted(h)
if not abort then return { 'live', '' } end

local receipt = call('GET', G .. ':signal:' .. (h.abort_cid or ''))
local signal = receipt and cjson.decode(receipt) or {}
local steps = call('HGETALL', room_key(room) .. ':steps')
for i = 2, #steps, 2 do
  if steps[i]:sub(1, 1) == '!' then steps[i] = '!' end
end
return { abort, signal.by or '', signal.reason or '', h.abort_cid or '', signal.at or now,
  string.format('%d', now_ms - ms_of(h.claimed_at)), steps }
